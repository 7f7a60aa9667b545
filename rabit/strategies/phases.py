"""One exchange until a step, another from there on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rabit.training.strategy import Array, Exchange, Ranks, Reduced, Slot

from .ranges import in_range
from .synchronous import Mean

__all__ = ["Phases"]


@dataclass
class PhasesState:
    first: Any = None
    then: Any = None


@dataclass(frozen=True)
class Phases(Exchange):
    """`first` in steps below `until`, `then` in the others: warm-up of any method, and ramps of several.

    State: those of both.  Error feedback around it keeps its residual across the change.
    """

    until: int
    then: Exchange
    first: Exchange = Mean()

    def __post_init__(self) -> None:
        in_range(self, until="0..")

    @property
    def is_biased(self) -> bool:
        return self.first.is_biased or self.then.is_biased

    def state(self, slot: Slot) -> PhasesState:
        return PhasesState(self.first.state(slot), self.then.state(slot))

    def _now(self, state: PhasesState, ranks: Ranks) -> tuple[Exchange, Any]:
        is_first = ranks.step < self.until
        return (self.first, state.first) if is_first else (self.then, state.then)

    async def __call__(self, x: Array, state: PhasesState, ranks: Ranks) -> Reduced:
        exchange, inner = self._now(state, ranks)
        return await exchange(x, inner, ranks)

    async def with_residual(
        self, x: Array, residual: Array, factor: float, state: PhasesState, ranks: Ranks
    ) -> tuple[Array, Array]:
        exchange, inner = self._now(state, ranks)
        return await exchange.with_residual(x, residual, factor, inner, ranks)
