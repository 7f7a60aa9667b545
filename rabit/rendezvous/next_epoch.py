"""Who goes on in the next epoch of an elastic job, and how long others are waited for.  Pure.

The survivors each work it out of the same record, and the first one that writes it is followed by all.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence

from rabit.rendezvous.membership import Membership

__all__ = ["cut_off", "is_outdated", "next_epoch", "waiting_time_s"]

_LOST_MAX = 16


def waiting_time_s(membership: Membership, patience_s: float, timeout_s: float) -> float:
    """How long, in seconds, those that are here wait for those that are missing.

    Who is missing may only be late: it hears of the loss at its next collective.  But where no
    process has ended, those that were lost are silent, and nothing else explains the loss.
    """
    missing = membership.missing
    if not missing:
        return 0.0
    has_cause = any(each in membership.ended for each in membership.members)
    if not has_cause and all(each in membership.accused for each in missing):
        return patience_s
    return timeout_s


def next_epoch(membership: Membership) -> Membership:
    """The epoch of those that are here and of newcomers; nobody waits for the missing any more."""
    there = _there(membership)
    away = cut_off(there, membership.away)
    there = [each for each in there if each not in away]
    members, left, taken = _chosen(membership, there)
    out = [each for each in membership.members if each not in members]
    lost = {each: _why(membership, each) for each in out}
    seats = {each: seat for each, seat in membership.seats.items() if each in members}
    return Membership(
        membership.epoch + 1, members, membership.least, membership.most,
        {each: host for each, host in membership.hosts.items() if each not in out},
        waiting=tuple(each for each in membership.waiting if each not in members),
        leaving=membership.leaving.intersection(members),
        done=membership.finished,
        lost=dict(list(lost.items())[:_LOST_MAX]),
        left=left,
        seats={**seats, **{each: membership.seat_of(taken[each]) for each in taken}},
        meeting=membership.meeting.next(),
    )


def is_outdated(membership: Membership) -> bool:
    """True if the members could be others: newcomers wait, or members are to leave."""
    whole = next_epoch(dataclasses.replace(membership, here=frozenset(membership.members)))
    return bool(whole.left) or not set(whole.members).issubset(membership.members)


def _there(membership: Membership) -> list[int]:
    """Members that want the next epoch, and have not ended."""
    return [each for each in membership.members if each in membership.here and each not in membership.ended]


def _chosen(
    membership: Membership, there: Sequence[int]
) -> tuple[tuple[int, ...], frozenset[int], dict[int, int]]:
    """The next members, of those that are there and of newcomers; those that leave; who comes for whom."""
    staying = [each for each in there if each not in membership.leaving]
    newcomers = membership.waiting[: max(0, membership.most - len(staying))]
    wanted = membership.least - membership.finished - len(staying) - len(newcomers)
    going = [each for each in there if each in membership.leaving]
    back = going[: max(0, wanted)]
    gone = [each for each in membership.members if each not in staying and each not in back]
    taken = _taken(membership, newcomers, gone)
    in_place = {old: new for new, old in taken.items()}
    members = (in_place.get(each, each) for each in membership.members)
    kept = tuple(each for each in members if each not in gone)
    more = tuple(each for each in newcomers if each not in taken)
    return (*kept, *more), frozenset(going[len(back) :]), taken


def _taken(
    membership: Membership, newcomers: Sequence[int], gone: Sequence[int]
) -> dict[int, int]:
    """Which newcomer comes for which of those that are gone: for one of its own host if there is one."""
    free = list(gone)
    taken: dict[int, int] = {}
    for is_at_home in (True, False):
        for each in newcomers:
            fit = [old for old in free if not is_at_home or membership.hosts[old] == membership.hosts[each]]
            if each not in taken and fit:
                taken[each] = fit[0]
                free.remove(fit[0])
    return taken


def _why(membership: Membership, member: int) -> str:
    """Why `member` is left out of the next epoch."""
    how = membership.ended.get(member)
    if how is not None:
        return how or "ended well"
    missed = cut_off(_there(membership), membership.away).get(member)
    if missed:
        shown = ", ".join(map(str, missed[:5]))
        return f"it and process {shown} do not reach each other, and this one was to go"
    if member in membership.here:
        return "its host is none of the job any more"
    return membership.accused.get(member) or "did not come to the next epoch in time"


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
