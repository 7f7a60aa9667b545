"""Losses: which ranks a job has lost, and whether it goes on without them."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

from rabit.errors import InvalidArgument
from rabit.rendezvous.membership import KEY, MEMBERS_MAX, Membership

if TYPE_CHECKING:
    from rabit.rendezvous.store_client import StoreClient

__all__ = ["Losses", "elastic_losses"]


class Losses:
    """One thread only.

    size: ranks at the start.  least: that the job needs; `size`: it may lose none.  store: holds the
    membership of an elastic job; None: it is not elastic.
    """

    def __init__(self, size: int, least: int, store: StoreClient | None = None) -> None:
        self._size = size
        self._least = least
        self._store = store
        self._lost: set[int] = set()

    def survives(self, ranks: Collection[int], how: str) -> bool:
        """True if the job goes on after these ranks have ended so; the others are told then.

        how: "" if they have ended well.
        """
        if self._store is None:
            return False
        if how and len(self._lost.union(ranks)) > self._size - self._least:
            return False
        for rank in sorted(ranks):
            self._publish(self._store, rank, how)
        if how:
            self._lost.update(ranks)
        return True

    def give_up(self, ranks: Collection[int]) -> None:
        """The other ranks have agreed to go on without these, which may run still."""
        self._lost.update(ranks)

    @property
    def ranks(self) -> frozenset[int]:
        return frozenset(self._lost)

    @property
    def note(self) -> str:
        """What becomes of the job."""
        left = self._size - len(self._lost)
        return f"the job goes on with {left} of {self._size} ranks (--min-np {self._least})"

    def _publish(self, store: StoreClient, rank: int, how: str) -> None:
        version, held = store.watch(KEY, 0, timeout=0.0)
        while True:
            changed = Membership.from_json(held).with_ended(rank, how)
            is_mine, (version, held) = store.compare_and_set(KEY, version, changed.to_json())
            if is_mine:
                return


@contextlib.contextmanager
def elastic_losses(
    hosts: Sequence[str], least: int, address: str, secret: bytes
) -> Iterator[Losses]:
    """Of an elastic job, whose membership the store at `address` holds from now on.

    hosts: of each rank.  least: ranks that it needs; 0, or no store: the job is not elastic.
    """
    if least == 0 or not address:
        yield Losses(len(hosts), len(hosts))
        return
    if len(hosts) > MEMBERS_MAX:
        raise InvalidArgument(
            f"--min-np is {least}, and the job has {len(hosts)} ranks: at most {MEMBERS_MAX} can agree "
            "on a membership. Leave out --min-np, or start fewer ranks."
        )
    # Other jobs need no native library here.
    from rabit.rendezvous.store_client import StoreClient

    with contextlib.closing(StoreClient(address, secret)) as store:
        store.set(KEY, Membership.first(hosts, least).to_json())
        yield Losses(len(hosts), least, store)
