"""MonitoredBarrier: a barrier through torch's store, which can say who did not come."""

from __future__ import annotations

import time
from typing import Any

import rabit

__all__ = ["MonitoredBarrier"]

_ANSWER_TIME_S = 20.0  # longest wait for rank 0's verdict beyond the barrier's limit
_PAUSE_MAX_S = 0.01


class MonitoredBarrier:
    """The barriers of one group, in their order.  One thread at a time."""

    def __init__(self, store: Any, rank: int, size: int) -> None:
        self._store = store
        self._rank = rank
        self._size = size
        self._count = 0

    def run(self, limit_s: float, wait_all_ranks: bool) -> None:
        """Blocks until all ranks are here, at most about `limit_s`.

        Raises TimedOut that names the first missing rank; with `wait_all_ranks` all of them.
        """
        deadline = time.monotonic() + limit_s
        self._count += 1
        key = f"monitored.{self._count}"
        if self._rank == 0:
            answer = self._missing_ranks(key, deadline, wait_all_ranks)
            self._store.set(f"{key}.answer", answer)
        else:
            self._store.set(f"{key}.{self._rank}", "here")
            # Rank 0 answers when its own time is over, which may be later than ours.
            if not self._appears(f"{key}.answer", deadline + _ANSWER_TIME_S):
                raise rabit.TimedOut(
                    f"monitored_barrier on rank {self._rank}: rank 0 did not answer within "
                    f"{limit_s + _ANSWER_TIME_S:g} s. Look at what it is doing."
                )
            answer = self._store.get(f"{key}.answer").decode()
        if answer:
            raise rabit.TimedOut(
                f"monitored_barrier on rank {self._rank}: rank {answer} did not reach it in "
                f"{limit_s:g} s. Look at what these ranks are doing."
            )

    def _missing_ranks(self, key: str, deadline: float, wait_all_ranks: bool) -> str:
        missing = []
        for peer in range(1, self._size):
            if not self._appears(f"{key}.{peer}", deadline):
                missing.append(str(peer))
                if not wait_all_ranks:
                    break
        return ", ".join(missing)

    def _appears(self, key: str, deadline: float) -> bool:
        # The stores end a wait with different exceptions, and some take a limit of zero for none.
        pause = 0.0005
        while not self._store.check([key]):
            if time.monotonic() >= deadline:
                return False
            time.sleep(pause)
            pause = min(_PAUSE_MAX_S, pause * 2)
        return True
