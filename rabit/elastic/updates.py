"""Updates: whether the members of an elastic job are to change though nobody is lost."""

from __future__ import annotations

import time
from collections.abc import Callable

from rabit.ops.votes import any_rank
from rabit.rendezvous.membership import KEY, Membership
from rabit.rendezvous.survivors import Store
from rabit.session import rank

__all__ = ["HostsUpdatedInterrupt", "Updates"]

# So much later a change is seen at most, and so seldom a commit costs a message to the store.
_LOOK_EVERY_S = 0.1


class HostsUpdatedInterrupt(Exception):
    """Hosts have come or are to be left: the members of the job change.

    `elastic.run` takes it and goes on from the commit that has raised it.  Horovod's name.
    """


class Updates:
    """Rank 0 looks at the store, and all ranks learn in one vote what it has seen.  One thread only.

    So all ranks stop at the same commit, and no work is lost.
    store: None: the members of this job change by losses alone, and nobody looks.
    """

    def __init__(self, store: Store | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._look_at_s = 0.0
        self._is_outdated = False

    def check(self, keeps_together: bool = False) -> None:
        """Raises HostsUpdatedInterrupt on all ranks if there is an update.  Blocks until all have come.

        keeps_together: the ranks wait for each other also where the members cannot change so.
        """
        if self._store is None and not keeps_together:
            return
        if any_rank(rank() == 0 and self._sees_one(), "rabit.elastic.update"):
            raise HostsUpdatedInterrupt(
                "hosts of the job have changed: its ranks come together anew. rabit.elastic.run does so; "
                "commit inside of the function that it calls."
            )

    def start_over(self) -> None:
        """The members are others now."""
        self._is_outdated = False
        self._look_at_s = 0.0

    def _sees_one(self) -> bool:
        now = self._clock()
        if self._store is not None and not self._is_outdated and now >= self._look_at_s:
            self._look_at_s = now + _LOOK_EVERY_S
            held = self._store.watch(KEY, 0, 0.0).value
            self._is_outdated = Membership.from_json(held).is_outdated
        return self._is_outdated
