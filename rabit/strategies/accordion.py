"""Accordion: little compression while training changes fast, much while it does not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rabit.training.state import leaf
from rabit.training.strategy import Array, Exchange, Ranks, Reduced, Slot

from .ranges import in_range

__all__ = ["Accordion"]


@dataclass
class AccordionState:
    """total: the sum of the decoded means of this window.  before: its norm in the last; 0: none."""

    total: Any = leaf(0.0)
    before: float = 0.0
    unit: float = 0.0  # the learning rate where the window began
    is_critical: bool = True
    low: Any = None
    high: Any = None


@dataclass(frozen=True)
class Accordion(Exchange):
    """`low` compression where |‖Δ_before‖ - ‖Δ‖| ≥ eta·‖Δ_before‖, else `high`; and `low` where it drops.

    That is when the learning rate is less than `drop` of what it was where the window began, to the end of the
    next one: a rate that falls by a little in every step does not count as a drop.
    Δ is the sum of the decoded means of `interval` steps: equal on all ranks, so that all decide alike
    and nothing has to be agreed.
    State: Δ, replicated, and those of both exchanges; the residual belongs around it:
    ErrorFeedback(Accordion(PowerSGD(4), PowerSGD(1))).
    Source: Agarwal et al., "Accordion: Adaptive Gradient Communication via Critical Learning Regime
    Identification", 2021.
    """

    low: Exchange
    high: Exchange
    interval: int = 100
    eta: float = 0.5
    drop: float = 0.5

    def __post_init__(self) -> None:
        in_range(self, interval="1..", eta="[0, inf)", drop="[0, 1]")

    @property
    def is_biased(self) -> bool:
        return self.low.is_biased or self.high.is_biased

    def state(self, slot: Slot) -> AccordionState:
        return AccordionState(low=self.low.state(slot), high=self.high.state(slot))

    async def __call__(self, x: Array, state: AccordionState, ranks: Ranks) -> Reduced:
        chosen, inner = self._choose(state, ranks)
        found = await chosen(x, inner, ranks)
        state.total = state.total + found.value
        return Reduced(found.value, x if found.sent is None else found.sent)

    async def with_residual(
        self, x: Array, residual: Array, factor: float, state: AccordionState, ranks: Ranks
    ) -> tuple[Array, Array]:
        chosen, inner = self._choose(state, ranks)
        value, left = await chosen.with_residual(x, residual, factor, inner, ranks)
        state.total = state.total + value
        return value, left

    def _choose(self, state: AccordionState, ranks: Ranks) -> tuple[Exchange, Any]:
        begins = ranks.step % self.interval == 0
        if begins and ranks.step:
            norm = float(np.linalg.norm(state.total))
            change = abs(state.before - norm)
            state.is_critical = not state.before or change >= self.eta * state.before
            state.before, state.total = norm, 0.0
        state.is_critical = state.is_critical or ranks.unit < self.drop * state.unit
        if begins or not state.unit:
            state.unit = ranks.unit
        return (self.low, state.low) if state.is_critical else (self.high, state.high)
