"""Membership: who takes part in an elastic job, as the store holds it.  Pure.

One value under one key, changed by compare-and-set only: by survivors, who agree through it on who
goes on, by newcomers, who say that they wait, and by the launcher, which knows of every process
whether it has ended, and where there is room.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from rabit.errors import Internal
from rabit.rendezvous.meeting_place import MeetingPlace

__all__ = ["KEY", "MEMBERS_MAX", "Membership", "Place", "cut_off"]

KEY = "elastic"
# A value of the store has 64 KiB.
MEMBERS_MAX = 1024
_TEXT_MAX = 300
_LOST_MAX = 16
_ONE_STORE = MeetingPlace()


@dataclass(frozen=True)
class Place:
    """Where one member stands among the members of an epoch: values for fields of Config."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int


@dataclass(frozen=True)
class Membership:
    """A member is a process, by the number that it keeps; its rank changes with the membership.

    epoch, members: of the engines that run or start, in the order of their ranks.  least: with fewer
    the job ends.  most: newcomers are taken in up to so many.  hosts: of the members, and of the
    processes that may become some, by number.  waiting: those of the latter that have come, the first
    first.  leaving: members that go with the next epoch, as far as `least` allows.  here: members that
    have lost their engine and want the next; accused: whom they have lost, and why; away: whom they do
    not reach, as far as they have looked.  ended: members
    whose end the launcher has seen, and how; "": well.  done: how many had ended well before.  lost:
    who was left out of this epoch, and why; left: who of them was to leave.  seats: of members that
    have come for others, by number; see `seat_of`.  meeting: at which store the members of this epoch meet.
    """

    epoch: int
    members: tuple[int, ...]
    least: int
    most: int
    hosts: Mapping[int, str]
    waiting: tuple[int, ...] = ()
    leaving: frozenset[int] = frozenset()
    here: frozenset[int] = frozenset()
    accused: Mapping[int, str] = field(default_factory=dict)
    away: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    ended: Mapping[int, str] = field(default_factory=dict)
    done: int = 0
    lost: Mapping[int, str] = field(default_factory=dict)
    left: frozenset[int] = frozenset()
    seats: Mapping[int, int] = field(default_factory=dict)
    meeting: MeetingPlace = _ONE_STORE

    @classmethod
    def first(cls, hosts: Sequence[str], least: int, most: int = 0, stores: int = 1) -> Membership:
        """Of a job that starts: `hosts` of its processes, in the order of their ranks."""
        members = tuple(range(len(hosts)))
        at = MeetingPlace(stores)
        return cls(1, members, least, most or len(hosts), dict(enumerate(hosts)), meeting=at)

    def with_room(self, most: int, leaving: Collection[int]) -> Membership:
        """There is room for `most` ranks, and none where `leaving` are."""
        gone = frozenset(leaving).intersection(self.members)
        return dataclasses.replace(self, most=most, leaving=gone)

    def with_newcomer(self, number: int, host: str) -> Membership:
        """A process that may become a member starts on `host`."""
        return dataclasses.replace(self, hosts={**self.hosts, number: host})

    def with_waiting(self, number: int) -> Membership:
        """The process that was announced by this number has come."""
        return dataclasses.replace(self, waiting=(*self.waiting, number))

    def with_here(
        self,
        member: int,
        accused: int,
        why: str,
        away: Collection[int] = (),
        unreached: Collection[int] = (),
    ) -> Membership:
        """`member` wants the next epoch, since it has lost `accused`; -1: it cannot tell whom.

        away, unreached: which members, and which stores, it does not reach.
        """
        told = dict(self.accused)
        if accused in self.members and accused != member:
            told.setdefault(accused, why[:_TEXT_MAX])
        missed = {**self.away, **({member: tuple(away)} if away else {})}
        here, meeting = self.here | {member}, self.meeting.without(unreached)
        return dataclasses.replace(self, here=here, accused=told, away=missed, meeting=meeting)

    def with_ended(self, member: int, how: str) -> Membership:
        """The process of `member` has ended; how: "" if well."""
        if member not in self.members:  # It was none yet, or the others have gone on without it.
            return dataclasses.replace(
                self,
                hosts={each: host for each, host in self.hosts.items() if each != member},
                waiting=tuple(each for each in self.waiting if each != member),
            )
        return dataclasses.replace(self, ended={**self.ended, member: how[:_TEXT_MAX]})

    @property
    def missing(self) -> list[int]:
        """Members that have neither come nor ended."""
        return [each for each in self.members if each not in self.here and each not in self.ended]

    def wait_s(self, patience_s: float, timeout_s: float) -> float:
        """How long those that are here wait for those that are missing.

        Who is missing may only be late: it hears of the loss at its next collective.  But where no
        process has ended, those that were lost are silent, and nothing else explains the loss.
        """
        missing = self.missing
        if not missing:
            return 0.0
        has_cause = any(each in self.ended for each in self.members)
        if not has_cause and all(each in self.accused for each in missing):
            return patience_s
        return timeout_s

    def next(self) -> Membership:
        """The epoch of those that are here and of newcomers; nobody waits for the missing any more."""
        there = [each for each in self._there if each not in cut_off(self._there, self.away)]
        members, left, taken = self._chosen(there)
        out = [each for each in self.members if each not in members]
        lost = {each: self._why(each) for each in out}
        seats = {each: seat for each, seat in self.seats.items() if each in members}
        return Membership(
            self.epoch + 1, members, self.least, self.most,
            {each: host for each, host in self.hosts.items() if each not in out},
            waiting=tuple(each for each in self.waiting if each not in members),
            leaving=self.leaving.intersection(members),
            done=self.finished,
            lost=dict(list(lost.items())[:_LOST_MAX]),
            left=left,
            seats={**seats, **{each: self.seat_of(taken[each]) for each in taken}},
            meeting=self.meeting.next(),
        )

    @property
    def _there(self) -> list[int]:
        return [each for each in self.members if each in self.here and each not in self.ended]

    def _chosen(
        self, there: Sequence[int]
    ) -> tuple[tuple[int, ...], frozenset[int], dict[int, int]]:
        """The next members, of those that are there and of newcomers; those that leave; who comes for whom."""
        staying = [each for each in there if each not in self.leaving]
        newcomers = self.waiting[: max(0, self.most - len(staying))]
        wanted = self.least - self.finished - len(staying) - len(newcomers)
        going = [each for each in there if each in self.leaving]
        back = going[: max(0, wanted)]
        gone = [each for each in self.members if each not in staying and each not in back]
        taken = self._taken(newcomers, gone)
        in_place = {old: new for new, old in taken.items()}
        members = (in_place.get(each, each) for each in self.members)
        kept = tuple(each for each in members if each not in gone)
        more = tuple(each for each in newcomers if each not in taken)
        return (*kept, *more), frozenset(going[len(back) :]), taken

    def _taken(self, newcomers: Sequence[int], gone: Sequence[int]) -> dict[int, int]:
        """Which newcomer comes for which of those that are gone: for one of its own host if there is one."""
        free = list(gone)
        taken: dict[int, int] = {}
        for is_at_home in (True, False):
            for each in newcomers:
                fit = [old for old in free if not is_at_home or self.hosts[old] == self.hosts[each]]
                if each not in taken and fit:
                    taken[each] = fit[0]
                    free.remove(fit[0])
        return taken

    def seat_of(self, member: int) -> int:
        """What a member and all that have come for one another before it share: the number of the first.

        Who comes for a lost member takes its rank among those that are left, and its seat.
        """
        return self.seats.get(member, member)

    @property
    def is_outdated(self) -> bool:
        """True if the members could be others: newcomers wait, or members are to leave."""
        whole = dataclasses.replace(self, here=frozenset(self.members)).next()
        return bool(whole.left) or not set(whole.members).issubset(self.members)

    @property
    def strength(self) -> int:
        """How many ranks the job has or will have with those on their way; who ended well counts."""
        living = sum(1 for each in self.members if not self.ended.get(each))
        # Where no rank is left there is no state that newcomers could take.
        coming = len(self.coming) if living else 0
        return self.done + living + min(coming, max(0, self.most - living))

    @property
    def coming(self) -> list[int]:
        """Processes that may become members, whether they wait or have only been started."""
        return [each for each in self.hosts if each not in self.members]

    def _why(self, member: int) -> str:
        how = self.ended.get(member)
        if how is not None:
            return how or "ended well"
        missed = cut_off(self._there, self.away).get(member)
        if missed:
            shown = ", ".join(map(str, missed[:5]))
            return f"it and process {shown} do not reach each other, and this one was to go"
        if member in self.here:
            return "its host is none of the job any more"
        return self.accused.get(member) or "did not come to the next epoch in time"

    @property
    def is_too_small(self) -> bool:
        """True if too few are left; those that have ended well are at the end of the job already."""
        return len(self.members) + self.finished < self.least

    @property
    def finished(self) -> int:
        """How many members have ended well."""
        return self.done + sum(1 for how in self.ended.values() if not how)

    def member_of(self, rank: int) -> int:
        """The member that has this rank, or -1."""
        return self.members[rank] if 0 <= rank < len(self.members) else -1

    def place_of(self, member: int) -> Place:
        """Where `member`, which is one of the members, stands among them."""
        rows: dict[str, list[int]] = {}  # members by host, in the order of their ranks
        for each in self.members:
            rows.setdefault(self.hosts[each], []).append(each)
        mine = rows[self.hosts[member]]
        local_rank = mine.index(member)
        column = [host for host, row in rows.items() if len(row) > local_rank]
        return Place(
            rank=self.members.index(member),
            size=len(self.members),
            local_rank=local_rank,
            local_size=len(mine),
            cross_rank=column.index(self.hosts[member]),
            cross_size=len(column),
        )

    @property
    def is_homogeneous(self) -> bool:
        """True if every host has the same number of members."""
        hosts = [self.hosts[each] for each in self.members]
        return len({hosts.count(each) for each in hosts}) == 1

    def to_json(self) -> bytes:
        document = dataclasses.asdict(self)
        for name in ("here", "leaving", "left"):
            document[name] = sorted(document[name])
        return json.dumps(document, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, text: bytes) -> Membership:
        try:
            document = json.loads(text)
            for name in ("members", "waiting"):
                document[name] = tuple(document[name])
            for name in ("here", "leaving", "left"):
                document[name] = frozenset(document[name])
            for name in ("hosts", "accused", "ended", "lost", "seats"):
                document[name] = {int(key): value for key, value in document[name].items()}
            document["away"] = {int(key): tuple(each) for key, each in document["away"].items()}
            document["meeting"] = MeetingPlace.from_document(document["meeting"])
            return cls(**document)
        except (ValueError, KeyError, TypeError) as error:
            raise Internal(
                f"the record of the elastic job is malformed ({error}): {text[:200]!r}. Use the same "
                "version of mariza-rabit for the launcher and all ranks."
            ) from error


def cut_off(members: Sequence[int], away: Mapping[int, Collection[int]]) -> dict[int, list[int]]:
    """Who of the members has to go so that all others reach each other, and whom it does not reach.

    away: whom each has not reached; one direction is enough.  Again and again the one that misses most of
    those that are left goes, of several the last: so of two hosts the one with fewer members goes.
    """
    there = set(members)
    missed = {each: set[int]() for each in members}
    for each in members:
        for other in there.intersection(away.get(each, ())):
            missed[each].add(other)
            missed[other].add(each)
    gone: dict[int, list[int]] = {}
    while any(missed.values()):
        worst = max(members, key=lambda each: (len(missed[each]), members.index(each)))
        gone[worst] = sorted(missed[worst])
        for other in missed.pop(worst):
            missed[other].discard(worst)
        missed[worst] = set()
    return gone
