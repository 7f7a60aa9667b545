"""Losses: which processes a job has lost, and whether it continues without them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING

from rabit.errors import InvalidArgument
from rabit.launch.roster import Roster
from rabit.rendezvous.membership import KEY, MEMBERS_MAX, Membership
from rabit.rendezvous.survivors import change_membership, tell_end

if TYPE_CHECKING:
    from rabit.rendezvous.membership_store import MembershipStore

__all__ = ["Losses", "elastic_losses"]


class Losses:
    """What the store says of an elastic job, and what is written there.  One thread only.

    size: ranks at the start.  least: that the job needs; `size`: it may lose none.  roster: gets who is a rank, and
    who is lost.  store: holds the membership of an elastic job; None: it is not elastic.
    """

    def __init__(
        self, size: int, least: int, roster: Roster, store: MembershipStore | None = None
    ) -> None:
        self._size = size
        self._least = least
        self._roster = roster
        self._store = store
        self._held: Membership | None = None  # as it was read last

    def survives(self, numbers: Collection[int], how: str) -> bool:
        """True if the job continues after these processes have ended so; the others are informed then.

        how: "" if they have ended well.
        """
        if self._store is None:
            return False

        def end(membership: Membership) -> Membership:
            for number in sorted(numbers):
                membership = membership.with_ended(number, how)
            return membership

        held = self.change(lambda same: same)
        has_rank = any(self._roster[number].is_rank for number in numbers)
        if how and has_rank and end(held).strength < self._least:
            return False
        held = self.change(end)
        for number in sorted(numbers):
            tell_end(self._store, held, number)
        if how:
            self._roster.lose(numbers)
        return True

    def give_up(self, numbers: Collection[int]) -> None:
        """The other ranks have agreed to continue without these, which may run still."""
        if numbers and self._store is not None:
            self._roster.lose(numbers)
            self.look()

    def change(self, change: Callable[[Membership], Membership]) -> Membership:
        """Changes what the store holds of an elastic job; returns what it holds then."""
        assert self._store is not None
        self._held = change_membership(self._store, change)
        self._roster.became_ranks(self._held.members)
        return self._held

    def look(self) -> None:
        """Reads who the members of an elastic job are."""
        self.change(lambda same: same)

    @property
    def is_elastic(self) -> bool:
        """True if the job may continue without some of its ranks."""
        return self._store is not None

    @property
    def is_finishing(self) -> bool:
        """True when a rank of an elastic job has ended well, and so nobody is to come any more."""
        return self._held is not None and self._held.finished > 0

    @property
    def note(self) -> str:
        """What becomes of an elastic job."""
        held = self._held
        assert held is not None
        ended = f" and {held.finished} that ended well" if held.finished else ""
        running = sum(1 for member in held.members if member not in held.ended)
        return f"the job continues with {running} of {self._size} ranks{ended} (--min-np {self._least})"


@contextlib.contextmanager
def elastic_losses(
    hosts: Sequence[str],
    least: int,
    most: int,
    stores: Sequence[str],
    secret: bytes,
    roster: Roster,
) -> Iterator[Losses]:
    """Of an elastic job, whose membership the stores at these addresses hold from now on.

    hosts: of each rank.  least: ranks that it needs; 0, or no store: the job is not elastic.  most:
    ranks that it may have; 0: as many as it has at first.
    """
    if least == 0 or not stores:
        yield Losses(len(hosts), len(hosts), roster)
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
        yield Losses(len(hosts), least, roster, store)
