"""Survivors: how the processes of an elastic job agree on who continues, and how others come in."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Protocol

from rabit.errors import Aborted, PeerLost, TimedOut, code_of
from rabit.rendezvous.membership import KEY, Membership
from rabit.rendezvous.next_epoch import next_epoch, waiting_time_s

if TYPE_CHECKING:
    from rabit.rendezvous.reach import Addresses
    from rabit.rendezvous.store_client import Versioned

__all__ = ["Store", "admission", "change_membership", "next_membership", "tell_end", "whom_not_reached"]

# Where no process has ended, a rank that is silent gets so long to show that it lives.
_PATIENCE_S = 1.0
# How long a process checks which members it reaches: a first packet that is lost comes again after one second.
_LOOK_S = 3.0
# The store answers at once; what takes longer is a launcher that has gone.
_ANSWER_S = 30.0
# A newcomer may wait as long as the job runs: so often it sees whether signals came.
_SLICE_S = 1.0


class Store(Protocol):
    """Where the membership is held; see StoreClient."""

    def watch(self, key: str, seen: int, timeout: float) -> Versioned:
        """What `key` holds as soon as its version is later than `seen`."""

    def compare_and_set(self, key: str, version: int, value: bytes) -> tuple[bool, Versioned]:
        """Gives `key` this value if it has `version` still."""

    def unreached(self) -> list[int]:
        """Of several stores those that do not answer."""


def next_membership(
    store: Store,
    member: int,
    epoch: int,
    lost: int,
    why: str,
    timeout_s: float,
    away: Collection[int] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Membership:
    """The membership after `epoch`, as all survivors get it.  Blocks until they have agreed.

    member: of this process.  lost: the member that it has lost, and `why`; -1: it cannot tell.
    timeout_s: how long a survivor is waited for that has not noticed the loss, and a newcomer where
    the job has too few ranks without it.  away: the members that it does not reach; None: it has not checked, and
    no one has, which takes its time.
    It may be one without this process, which then was to leave: `left` has its number.
    Raises Aborted if the others have given this process up, PeerLost if too few are left.
    """
    began = clock()
    patience_s = _PATIENCE_S if away is None else _PATIENCE_S + _LOOK_S
    while True:
        version, held = store.watch(KEY, 0, _ANSWER_S)
        membership = Membership.from_json(held)
        if membership.epoch > epoch:
            return _checked(membership, member)
        if member not in membership.here:
            mine = membership.with_here(member, lost, why, away or (), store.unreached())
            store.compare_and_set(KEY, version, mine.to_json())
            continue
        proposed = next_epoch(membership)
        is_short = proposed.is_too_small and bool(proposed.coming)
        limit_s = timeout_s if is_short else waiting_time_s(membership, patience_s, timeout_s)
        left = began + limit_s - clock()
        if left > 0:
            # No one may come: the next look finds that the time is over.
            with contextlib.suppress(TimedOut):
                store.watch(KEY, version, left)
            continue
        if proposed.is_too_small:
            raise _too_few(membership, proposed)
        store.compare_and_set(KEY, version, proposed.to_json())


def admission(store: Store, number: int) -> Membership:
    """The membership by which a newcomer becomes a member.  Blocks until there is one.

    number: by which the launcher has announced this process.
    Raises Aborted if it is announced no more.
    """
    while True:
        version, held = store.watch(KEY, 0, _ANSWER_S)
        membership = Membership.from_json(held)
        if number in membership.members:
            return membership
        if number not in membership.hosts:
            raise Aborted(
                f"process {number} is not awaited by the job, which is in epoch {membership.epoch} "
                f"with {len(membership.members)} ranks: it came too late, or was given up. rabitrun "
                "starts another one where one is needed."
            )
        if number not in membership.waiting:
            store.compare_and_set(KEY, version, membership.with_waiting(number).to_json())
            continue
        with contextlib.suppress(TimedOut):
            store.watch(KEY, version, _SLICE_S)


def change_membership(store: Store, change: Callable[[Membership], Membership]) -> Membership:
    """What the store holds after `change`, which may be called several times; it must be there."""
    version, held = store.watch(KEY, 0, timeout=_ANSWER_S)
    while True:
        before = Membership.from_json(held)
        changed = change(before)
        if changed == before:
            return before
        is_mine, (version, held) = store.compare_and_set(KEY, version, changed.to_json())
        if is_mine:
            return changed


class Told(Protocol):
    """Where processes tell what never changes; see StoreClient."""

    def tell(self, key: str, value: bytes) -> None:
        """Gives `key` this value unless it has one."""


def tell_end(store: Told, membership: Membership, member: int) -> None:
    """Members that meet wait for `member` no more: its process has ended, and `membership` says how.

    A rank that starts leaves a will with the store, but one that ends before has none.  Does nothing for others.
    """
    if member not in membership.members:
        return
    rank = membership.members.index(member)
    how = membership.ended.get(member) or "ended well"
    why = f"rank {rank} (process {member}) {how} before all ranks had started; its own output tells why"
    # As StartWatch of native/rendezvous keeps the will of a rank: code, rank and message.
    store.tell(f"{membership.epoch}/failed", f"{code_of(PeerLost)} {rank} {why}".encode())


def whom_not_reached(store: Addresses, members: Sequence[int], member: int) -> list[int]:
    """Those of the members whose hosts do not answer this process.  Blocks, some seconds at most."""
    # Few jobs ever need it.
    from rabit.rendezvous.reach import not_reached

    return not_reached(store, members, member, _LOOK_S)


def _checked(membership: Membership, member: int) -> Membership:
    if member in membership.members or member in membership.left:
        return membership
    why = membership.lost.get(member, "it did not take part in the agreement")
    raise Aborted(
        f"process {member} was given up by the others, which have gone on to epoch "
        f"{membership.epoch} with {len(membership.members)} ranks: {why}. It can neither send nor "
        "commit any more; what it has done since its last commit is lost."
    )


def _too_few(membership: Membership, proposed: Membership) -> PeerLost:
    first = next(iter(proposed.lost), -1)
    shown = "; ".join(f"process {member}: {why}" for member, why in proposed.lost.items())
    return PeerLost(
        f"{len(proposed.members)} of {len(membership.members)} ranks are left after epoch "
        f"{membership.epoch}, and the job continues with at least {membership.least} (--min-np). Lost: "
        f"{shown}. Start it again, or allow fewer.",
        membership.members.index(first) if first in membership.members else -1,
    )
