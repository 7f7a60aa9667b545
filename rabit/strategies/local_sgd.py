"""Local SGD and its outer steps: ranks step alone, and now and then agree on where they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rabit.training.state import leaf
from rabit.training.strategy import Array, Exchange, Ranks, Reduced, Slot, Strategy
from rabit.training.tasks import Task

from .ranges import in_range
from .synchronous import Mean

__all__ = ["LocalSGD", "OuterStep", "TakeMean"]


class OuterStep(Protocol):
    """What is done with the mean move of the ranks; a frozen value."""

    def __call__(self, anchor: Array, move: Array, memory: Any, lr: float) -> tuple[Array, Any]:
        """(where all ranks continue, what to remember); descends along `move`.  memory: 0.0 at first."""


@dataclass(frozen=True)
class TakeMean:
    """anchor - mean move: the mean of the parameters."""

    def __call__(self, anchor: Array, move: Array, memory: Any, lr: float) -> tuple[Array, Any]:
        return anchor - move, memory


@dataclass
class LocalState:
    """anchor: where the ranks were together last.  memory: of the outer step."""

    anchor: Array
    memory: Any = leaf(0.0)
    inner: Any = None


class LocalSGD(Strategy):
    """Steps alone; after every `every` steps, Δ = exchange(anchor - x_i), and x_i = outer(anchor, Δ).

    outer: TakeMean() is Local SGD; SlowMomentum() SlowMo; Nesterov() DiLoCo.
    exchange: of the moves; error feedback with decay 0.95 over top-k is SparseLoCo.
    start: steps before it average gradients (post-local SGD).
    fragments: the parameters in this many parts that take turns.  delay: steps during which a move
    travels; then x = mix·x + (1-mix)·outer(...).  Both are Streaming DiLoCo.
    State: the anchor and the outer step's memory, replicated.  The optimizer's own momentum stays
    local.  Parameters differ between ranks in between; so do running statistics, which are not its own.
    A parameter that is frozen takes the mean of where the ranks had brought it, at their next meeting, without
    an outer step; from then on it stays.
    Refuses updates that are put off (overlap="next-forward"): it needs them at the step.
    Source: Stich, "Local SGD Converges Fast and Communicates Little", 2019; Lin et al., "Don't Use Large
    Mini-Batches, Use Local SGD", 2020; Douillard et al., "Streaming DiLoCo", 2025.
    """

    uses_step = True

    def __init__(
        self,
        every: int,
        outer: OuterStep | None = None,
        *,
        exchange: Exchange | None = None,
        start: int = 0,
        fragments: int = 1,
        delay: int = 0,
        mix: float = 0.0,
    ) -> None:
        self.every, self.start, self.fragments = every, start, fragments
        self.outer, self.exchange = outer or TakeMean(), exchange or Mean()
        self.delay, self.mix = delay, mix
        in_range(self, every="1..", start="0..", mix="[0, 1)")
        in_range(self, fragments=f"1..{every}", delay=f"0..{every - 1}")
        self._slots: Sequence[Slot] = ()
        self._moves: list[tuple[int, Slot, Task]] = []  # due when this many steps have ended

    def plan(self, slots: Sequence[Slot]) -> None:
        self._slots = slots
        for slot in slots:
            if slot.state is None:
                slot.state = LocalState(slot.value.copy(), inner=self.exchange.state(slot))

    async def gradient(self, slot: Slot, ranks: Ranks) -> None:
        if ranks.step < self.start:
            slot.grad = await ranks.mean(slot.grad)

    async def after_step(self, ranks: Ranks) -> None:
        alone = ranks.step - self.start
        if alone <= 0:
            for slot in self._slots:
                slot.state.anchor = slot.value.copy()
            return
        for place, slot in enumerate(self._slots):
            turn = self.every * (place % self.fragments + 1) // self.fragments
            if alone >= turn and (alone - turn) % self.every == 0:
                self._moves.append((ranks.step + self.delay, slot, self._start(slot, ranks)))
        await self._take(ranks.step)

    async def finish(self, ranks: Ranks) -> None:
        await self._take(ranks.step + self.delay)

    def _start(self, slot: Slot, ranks: Ranks) -> Task:
        move, is_frozen = slot.state.anchor - slot.value, slot.is_frozen

        async def body(ranks: Ranks) -> Reduced:
            if is_frozen:  # A residual would continue moving it.
                return Reduced(await ranks.mean(move))
            return await self.exchange(move, slot.state.inner, ranks)

        return ranks.start(body, name=f"move.{slot.name}", unit=1.0)

    async def _take(self, until: int) -> None:
        """Takes the moves that are due."""
        due = [pending for pending in self._moves if pending[0] <= until]
        self._moves = [pending for pending in self._moves if pending[0] > until]
        for _, slot, move in due:
            state = slot.state
            found = (await move).value
            if slot.is_frozen:
                state.anchor, state.memory = state.anchor - found, 0.0
            else:
                state.anchor, state.memory = self.outer(state.anchor, found, state.memory, slot.lr)
            mix = 0.0 if slot.is_frozen else self.mix
            slot.value = mix * slot.value + (1 - mix) * state.anchor if mix else state.anchor
