"""Losses: which processes a job has lost, and whether it goes on without them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING

from rabit.errors import InvalidArgument
from rabit.rendezvous.membership import KEY, MEMBERS_MAX, Membership
from rabit.rendezvous.survivors import change_membership, tell_end

if TYPE_CHECKING:
    from rabit.rendezvous.membership_store import MembershipStore

__all__ = ["Losses", "elastic_losses"]


class Losses:
    """What the store says of an elastic job, and what is written there.  One thread only.

    size: ranks at the start.  least: that the job needs; `size`: it may lose none.  store: holds the
    membership of an elastic job; None: it is not elastic.
    """

    def __init__(self, size: int, least: int, store: MembershipStore | None = None) -> None:
        self._size = size
        self._least = least
        self._store = store
        self._lost: set[int] = set()
        self._strength = size
        self._finished = 0
        self._members = frozenset(range(size))

    def survives(self, ranks: Collection[int], how: str) -> bool:
        """True if the job goes on after these ranks have ended so; the others are told then.

        how: "" if they have ended well.
        """
        if self._store is None:
            return False

        def end(membership: Membership) -> Membership:
            for rank in sorted(ranks):
                membership = membership.with_ended(rank, how)
            return membership

        held = self._take(change_membership(self._store, lambda same: same))
        if how and not self._members.isdisjoint(ranks) and end(held).strength < self._least:
            return False
        held = self._take(change_membership(self._store, end))
        for rank in sorted(ranks):
            tell_end(self._store, held, rank)
        if how:
            self._lost.update(ranks)
        return True

    def give_up(self, ranks: Collection[int]) -> None:
        """The other ranks have agreed to go on without these, which may run still."""
        if ranks and self._store is not None:
            self._lost.update(ranks)
            self.look()

    def change(self, change: Callable[[Membership], Membership]) -> None:
        """Changes what the store holds of an elastic job."""
        assert self._store is not None
        self._take(change_membership(self._store, change))

    def look(self) -> None:
        """Reads who the members of an elastic job are."""
        self.change(lambda same: same)

    @property
    def is_elastic(self) -> bool:
        """True if the job may go on without some of its ranks."""
        return self._store is not None

    @property
    def ranks(self) -> frozenset[int]:
        return frozenset(self._lost)

    @property
    def members(self) -> frozenset[int]:
        """Processes that are or were ranks, as far as the store has been read."""
        return self._members

    @property
    def is_finishing(self) -> bool:
        """True when a rank of an elastic job has ended well, and so nobody is to come any more."""
        return self._finished > 0

    @property
    def note(self) -> str:
        """What becomes of the job."""
        ended = f" and {self._finished} that ended well" if self._finished else ""
        running = self._strength - self._finished
        return f"the job goes on with {running} of {self._size} ranks{ended} (--min-np {self._least})"

    def _take(self, membership: Membership) -> Membership:
        self._members = self._members.union(membership.members)
        self._finished = membership.finished
        living = [each for each in membership.members if not membership.ended.get(each)]
        self._strength = membership.done + len(living)
        return membership


@contextlib.contextmanager
def elastic_losses(
    hosts: Sequence[str], least: int, most: int, stores: Sequence[str], secret: bytes
) -> Iterator[Losses]:
    """Of an elastic job, whose membership the stores at these addresses hold from now on.

    hosts: of each rank.  least: ranks that it needs; 0, or no store: the job is not elastic.  most:
    ranks that it may have; 0: as many as it has at first.
    """
    if least == 0 or not stores:
        yield Losses(len(hosts), len(hosts))
        return
    if max(len(hosts), most) > MEMBERS_MAX:
        raise InvalidArgument(
            f"--min-np is {least}, and the job has {max(len(hosts), most)} ranks: at most {MEMBERS_MAX} "
            "can agree on a membership. Leave out --min-np, or start fewer ranks."
        )
    # Other jobs need no native library here.
    from rabit.rendezvous.membership_store import open_store

    with contextlib.closing(open_store(stores, secret)) as store:
        store.set(KEY, Membership.first(hosts, least, most, len(stores)).to_json())
        yield Losses(len(hosts), least, store)
