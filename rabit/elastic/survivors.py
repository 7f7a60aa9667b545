"""Survivors: how the processes of an elastic job agree on who goes on."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Protocol

from rabit.errors import Aborted, PeerLost, TimedOut
from rabit.rendezvous.membership import KEY, Membership
from rabit.rendezvous.store_client import Versioned

__all__ = ["Store", "next_membership"]

# Where no process has ended, a rank that is silent gets so long to show that it lives.
_PATIENCE_S = 1.0
# The store answers at once; what takes longer is a launcher that has gone.
_ANSWER_S = 30.0


class Store(Protocol):
    """Where the membership is held; see StoreClient."""

    def watch(self, key: str, seen: int, timeout: float) -> Versioned:
        """What `key` holds as soon as its version is later than `seen`."""

    def compare_and_set(self, key: str, version: int, value: bytes) -> tuple[bool, Versioned]:
        """Gives `key` this value if it has `version` still."""


def next_membership(
    store: Store,
    member: int,
    epoch: int,
    lost: int,
    why: str,
    timeout_s: float,
    clock: Callable[[], float] = time.monotonic,
) -> Membership:
    """The membership after `epoch`, as all survivors get it.  Blocks until they have agreed.

    member: of this process.  lost: the member that it has lost, and `why`; -1: it cannot tell.
    timeout_s: how long a survivor is waited for that has not noticed the loss.
    Raises Aborted if the others have gone on without this process, PeerLost if too few are left.
    """
    began = clock()
    while True:
        version, held = store.watch(KEY, 0, _ANSWER_S)
        membership = Membership.from_json(held)
        if membership.epoch > epoch:
            return _checked(membership, member)
        if member not in membership.here:
            mine = membership.with_here(member, lost, why)
            store.compare_and_set(KEY, version, mine.to_json())
            continue
        left = began + membership.wait_s(_PATIENCE_S, timeout_s) - clock()
        if left > 0:
            # Nobody may come: the next look finds that the time is over.
            with contextlib.suppress(TimedOut):
                store.watch(KEY, version, left)
            continue
        proposed = membership.next()
        if proposed.is_too_small:
            raise _too_few(membership, proposed)
        store.compare_and_set(KEY, version, proposed.to_json())


def _checked(membership: Membership, member: int) -> Membership:
    if member in membership.members:
        return membership
    why = membership.lost.get(member, "it did not take part in the agreement")
    raise Aborted(
        f"process {member} was given up by the others, which have gone on to epoch "
        f"{membership.epoch} with {len(membership.members)} ranks: {why}. It can neither send nor "
        "commit any more; what it has done since its last commit is lost."
    )


def _too_few(membership: Membership, proposed: Membership) -> PeerLost:
    first = next(iter(proposed.lost), -1)
    shown = "; ".join(f"process {each}: {why}" for each, why in proposed.lost.items())
    return PeerLost(
        f"{len(proposed.members)} of {len(membership.members)} ranks are left after epoch "
        f"{membership.epoch}, and the job goes on with at least {membership.least} (--min-np). Lost: "
        f"{shown}. Start it again, or allow fewer.",
        membership.members.index(first) if first in membership.members else -1,
    )
