"""Who continues in the next epoch of an elastic job, and how long others are waited for.  Pure.

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

    A missing member may only be late: it hears of the loss at its next collective.  But where no
    process has ended, those that were lost are silent, and nothing else explains the loss.
    """
    missing = membership.missing
    if not missing:
        return 0.0
    has_cause = any(member in membership.ended for member in membership.members)
    if not has_cause and all(member in membership.accused for member in missing):
        return patience_s
    return timeout_s


def next_epoch(membership: Membership) -> Membership:
    """The epoch of those that are here and of newcomers; no one waits for the missing any more."""
    there = _there(membership)
    away = cut_off(there, membership.away)
    there = [member for member in there if member not in away]
    members, left, taken = _chosen(membership, there)
    out = [member for member in membership.members if member not in members]
    lost = {member: _why(membership, member) for member in out}
    seats = {number: seat for number, seat in membership.seats.items() if number in members}
    return Membership(
        membership.epoch + 1, members, membership.least, membership.most,
        {number: host for number, host in membership.hosts.items() if number not in out},
        waiting=tuple(newcomer for newcomer in membership.waiting if newcomer not in members),
        leaving=membership.leaving.intersection(members),
        done=membership.finished,
        lost=dict(list(lost.items())[:_LOST_MAX]),
        left=left,
        seats={**seats, **{newcomer: membership.seat_of(taken[newcomer]) for newcomer in taken}},
        meeting=membership.meeting.next(),
    )


def is_outdated(membership: Membership) -> bool:
    """True if the members could be others: newcomers wait, or members are to leave."""
    whole = next_epoch(dataclasses.replace(membership, here=frozenset(membership.members)))
    return bool(whole.left) or not set(whole.members).issubset(membership.members)


def _there(membership: Membership) -> list[int]:
    """Members that want the next epoch, and have not ended."""
    return [member for member in membership.members if member in membership.here and member not in membership.ended]


def _chosen(
    membership: Membership, there: Sequence[int]
) -> tuple[tuple[int, ...], frozenset[int], dict[int, int]]:
    """The next members, of those present and of newcomers; those that leave; which newcomer replaces which member."""
    staying = [member for member in there if member not in membership.leaving]
    newcomers = membership.waiting[: max(0, membership.most - len(staying))]
    wanted = membership.least - membership.finished - len(staying) - len(newcomers)
    going = [member for member in there if member in membership.leaving]
    back = going[: max(0, wanted)]
    gone = [other for other in membership.members if other not in staying and other not in back]
    taken = _taken(membership, newcomers, gone)
    in_place = {old: new for new, old in taken.items()}
    members = (in_place.get(other, other) for other in membership.members)
    kept = tuple(member for member in members if member not in gone)
    more = tuple(newcomer for newcomer in newcomers if newcomer not in taken)
    return (*kept, *more), frozenset(going[len(back) :]), taken


def _taken(
    membership: Membership, newcomers: Sequence[int], gone: Sequence[int]
) -> dict[int, int]:
    """Which newcomer comes for which of those that are gone: for one of its own host if there is one."""
    free = list(gone)
    taken: dict[int, int] = {}
    for is_at_home in (True, False):
        for newcomer in newcomers:
            fit = [old for old in free if not is_at_home or membership.hosts[old] == membership.hosts[newcomer]]
            if newcomer not in taken and fit:
                taken[newcomer] = fit[0]
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
        return "its host is no longer part of the job"
    return membership.accused.get(member) or "did not come to the next epoch in time"


def cut_off(members: Sequence[int], away: Mapping[int, Collection[int]]) -> dict[int, list[int]]:
    """The member to exclude so that all others reach each other, and the members that it does not reach.

    away: the members that each has not reached; one direction is enough.  Again and again the one that misses most of
    those that are left goes, of several the last: so of two hosts the one with fewer members goes.
    """
    there = set(members)
    missed = {member: set[int]() for member in members}
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
