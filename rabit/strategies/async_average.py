"""Asynchronous model average: no one waits for anybody."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rabit.training.strategy import Array, Ranks, Slot, Strategy
from rabit.training.tasks import Task

__all__ = ["AsyncAverage"]


class AsyncAverage(Strategy):
    """x_i = x_i + mean(y) - y_i when the mean of what was sent, y, is there; then the next is sent.

    The ranks step as fast as each can; an average travels concurrently, and the next starts when it has arrived.
    Saving and ending bring all ranks to the same number of averages, and wait.  `pause` ends averaging
    when every rank has called it, `resume` starts it again; neither waits, and steps continue.
    Ranks may take other numbers of steps, and need no `join`, which is refused.
    A parameter that is frozen stays as it is on each rank, and still travels: ranks may freeze it at other averages.
    State: none besides the parameters, which differ between ranks.
    Source: Gan et al., "BAGUA: Scaling up Distributed Learning with System Relaxations", 2021.
    """

    uses_step = True
    refuses_join = (
        "the number of averages that ranks take part in is not that of their steps, and zeros of a rank that has left "
        "would enter them. Leave join out: steps take no other rank, and each may have as many as it likes."
    )

    def __init__(self) -> None:
        self._slots: Sequence[Slot] = ()
        self._sent: list[Array] = []
        self._move: Task | None = None
        self._started = 0
        self._wants_pause = False
        self.is_paused = False  # every rank has asked for it

    def pause(self) -> None:
        """Asks for an end of averaging; `is_paused` when the others have asked as well."""
        self._wants_pause = True

    def resume(self) -> None:
        """Averages from the next step on, with the ranks that do so too."""
        self._wants_pause = self.is_paused = False

    def plan(self, slots: Sequence[Slot]) -> None:
        self._slots = slots

    async def after_step(self, ranks: Ranks) -> None:
        if self._move is not None and self._move.is_done:
            await self._take()
        if self._move is None and not self.is_paused:
            self._send(ranks)

    async def finish(self, ranks: Ranks) -> None:
        most = int((await ranks.max(np.array([self._started], np.int64)))[0])
        while self._move is not None or self._started < most:
            if self._move is None:
                self._send(ranks)
            await self._take()

    def _send(self, ranks: Ranks) -> None:
        self._sent = [slot.value.copy() for slot in self._slots]
        self._started += 1

        asks = np.array([self._wants_pause], np.int64)

        async def body(ranks: Ranks) -> tuple[list[Array], bool]:
            means = [await ranks.mean(task) for task in self._sent]
            return means, int((await ranks.sum(asks))[0]) == ranks.size

        self._move = ranks.start(body, name="average")

    async def _take(self) -> None:
        assert self._move is not None
        means, all_ask = await self._move
        self.is_paused = all_ask and self._wants_pause
        for slot, sent, mean in zip(self._slots, self._sent, means, strict=True):
            if not slot.is_frozen:
                slot.value = slot.value + (mean - sent)
        self._move = None
