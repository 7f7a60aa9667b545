"""LAMB whose momentum travels in one bit once its variance is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rabit.training.strategy import Array, Exchange, Ranks, Slot, Strategy

from .ranges import check_betas, in_range

__all__ = ["OneBitLamb"]


@dataclass
class LambState:
    """trust: the mean ratio of the warm-up.  fresh: the variance that continues.  factor: of the ratio."""

    m: Array
    v: Array
    fresh: Array
    trust: float = 0.0
    factor: float = 1.0
    inner: Any = None


class OneBitLamb(Strategy):
    """Until `warmup`: LAMB on the mean gradient, with the ratio r = ‖x‖/‖u‖ of a layer, u = m/(√v + ε).

    Then m = exchange(β₁·m + (1-β₁)·g_i), v stays, and the mean ratio of the warm-up is scaled by
    f = max(√v + ε)/(√w + ε), where w continues as the variance of the gradients that m amounts to:
    (m - β₁·m_before)/(1-β₁).  f is in [0.5, 4] and changes by a tenth in a step at most.
    It leaves r·u in place of the gradient, 0 where v is 0.
    exchange: error feedback over two phases of signs.  Blocks have scales of their own, so momenta of
    different layers need no common one.
    State: m, v and w, replicated, and the exchange's.
    Needs plain SGD as optimizer, whose step this is, and a warm-up that has seen every parameter.
    Source: Li et al., "1-bit LAMB: Communication Efficient Large-Scale Large-Batch Training with LAMB's
    Convergence Speed", 2021.
    """

    has_momentum = True
    gives_steps = True
    bounds = (0.01, 10.0)  # of the ratio
    factors = (0.5, 4.0)
    change = 0.1  # of the factor, in a step
    keeps = 0.9  # of the mean ratio, in a step

    def __init__(
        self,
        exchange: Exchange,
        warmup: int,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
    ) -> None:
        self.exchange, self.warmup, self.betas, self.eps = exchange, warmup, betas, eps
        in_range(self, warmup="1..", eps="(0, inf)")
        check_betas(self, betas)

    def plan(self, slots: Sequence[Slot]) -> None:
        for slot in slots:
            if slot.state is None:
                zeros = np.zeros(slot.shape, slot.dtype)
                slot.state = LambState(zeros, zeros, zeros, inner=self.exchange.state(slot))

    async def gradient(self, slot: Slot, ranks: Ranks) -> None:
        state, kind, (b1, b2) = slot.state, slot.dtype.type, self.betas
        if ranks.step < self.warmup:
            g = await ranks.mean(slot.grad)
            state.m = kind(b1) * state.m + kind(1 - b1) * g
            state.v = state.fresh = kind(b2) * state.v + kind(1 - b2) * g * g
            update = self._update(state)
            ratio = self._ratio(slot.value, update)
            state.trust = self.keeps * state.trust + (1 - self.keeps) * ratio
        else:
            before = state.m
            m = kind(b1) * before + kind(1 - b1) * slot.grad
            state.m = (await self.exchange(m, state.inner, ranks)).value
            g = (state.m - kind(b1) * before) / kind(1 - b1)
            state.fresh = kind(b2) * state.fresh + kind(1 - b2) * g * g
            update = self._update(state)
            state.factor = self._factor(state)
            ratio = state.factor * state.trust / (1 - self.keeps**self.warmup)
        slot.grad = kind(ratio) * update

    def _update(self, state: LambState) -> Array:
        root = np.sqrt(state.v) + state.v.dtype.type(self.eps)
        # Only where v is 0: one that is not a number is to be seen in the parameters.
        update: Array = np.where(state.v == 0, state.v.dtype.type(0), state.m / root)
        return update

    def _ratio(self, value: Array, update: Array) -> float:
        """‖x‖/‖u‖ within bounds; 1 where one of them is 0."""
        of_value, of_update = float(np.linalg.norm(value)), float(np.linalg.norm(update))
        if not of_value or not of_update:
            return 1.0
        return min(max(of_value / of_update, self.bounds[0]), self.bounds[1])

    def _factor(self, state: LambState) -> float:
        known, fresh = (np.sqrt(moment) + self.eps for moment in (state.v, state.fresh))
        factor = float(np.max(known / fresh, initial=0.0))
        last = state.factor
        factor = min(max(factor, last * (1 - self.change)), last * (1 + self.change))
        return min(max(factor, self.factors[0]), self.factors[1])
