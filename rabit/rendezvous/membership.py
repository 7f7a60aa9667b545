"""Membership: who takes part in an elastic job, as the store holds it; see also next_epoch.  Pure.

One value under one key, changed by compare-and-set only: by survivors, who agree through it on who
continues, by newcomers, who say that they wait, and by the launcher, which knows of every process
whether it has ended, and where there is room.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from rabit.errors import Internal
from rabit.rendezvous.meeting_place import MeetingPlace

__all__ = ["KEY", "MEMBERS_MAX", "Membership"]

KEY = "elastic"
# A value of the store has 64 KiB.
MEMBERS_MAX = 1024
_TEXT_MAX = 300
_ONE_STORE = MeetingPlace()


@dataclass(frozen=True)
class Membership:
    """A member is a process, by the number that it keeps; its rank changes with the membership.

    epoch, members: of the engines that run or start, in the order of their ranks.  least: with fewer
    the job ends.  most: newcomers are accepted up to this number.  hosts: of the members, and of the
    processes that may become some, by number.  waiting: those of the latter that have come, the first
    first.  leaving: members that go with the next epoch, as far as `least` allows.  here: members that
    have lost their engine and want the next; accused: the members they have lost, and why; away: those they do
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
        """`member` wants the next epoch, since it has lost `accused`; -1: it does not know which member.

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
                hosts={number: host for number, host in self.hosts.items() if number != member},
                waiting=tuple(newcomer for newcomer in self.waiting if newcomer != member),
            )
        return dataclasses.replace(self, ended={**self.ended, member: how[:_TEXT_MAX]})

    @property
    def missing(self) -> list[int]:
        """Members that have neither come nor ended."""
        return [member for member in self.members if member not in self.here and member not in self.ended]

    def seat_of(self, member: int) -> int:
        """What a member and all that have come for one another before it share: the number of the first.

        The newcomer that replaces a lost member takes its rank among those that are left, and its seat.
        """
        return self.seats.get(member, member)

    @property
    def strength(self) -> int:
        """How many ranks the job has or will have with those on their way; who ended well counts."""
        living = sum(1 for member in self.members if not self.ended.get(member))
        # Where no rank is left there is no state that newcomers could take.
        coming = len(self.coming) if living else 0
        return self.done + living + min(coming, max(0, self.most - living))

    @property
    def coming(self) -> list[int]:
        """Processes that may become members, whether they wait or have only been started."""
        return [host for host in self.hosts if host not in self.members]

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
            document["away"] = {int(key): tuple(number) for key, number in document["away"].items()}
            document["meeting"] = MeetingPlace.from_document(document["meeting"])
            return cls(**document)
        except (ValueError, KeyError, TypeError) as error:
            raise Internal(
                f"the record of the elastic job is malformed ({error}): {text[:200]!r}. Use the same "
                "version of mariza-rabit for the launcher and all ranks."
            ) from error
