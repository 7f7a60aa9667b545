"""Adam whose momentum travels, encoded, once its variance is known: 1-bit Adam and QAdam."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rabit.training.strategy import Array, Exchange, Ranks, Slot, Strategy

from .ranges import check_betas, in_range

__all__ = ["OneBitAdam"]


@dataclass
class AdamState:
    m: Array
    v: Array
    inner: Any = None


class OneBitAdam(Strategy):
    """Until `warmup`: Adam on the mean gradient.  Then m = exchange(β₁·m + (1-β₁)·g_i) and v stays.

    It leaves m̂/(√v̂ + ε) in place of the gradient, 0 where v is 0: signs know no zero, and a parameter
    that no one has used would be divided by it.
    exchange: error feedback over two phases of signs is 1-bit Adam; over two phases of 8 bits QAdam.
    State: m and v, replicated, and the exchange's.
    Needs plain SGD as optimizer, whose step this is, and a warm-up that has seen every parameter.
    Source: Tang et al., "1-bit Adam: Communication Efficient Large-Scale Training with Adam's Convergence
    Speed", 2021; Gan et al., "BAGUA" (QAdam), 2021.
    """

    has_momentum = True
    gives_steps = True

    def __init__(
        self,
        exchange: Exchange,
        warmup: int,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        self.exchange, self.warmup, self.betas, self.eps = exchange, warmup, betas, eps
        in_range(self, warmup="1..", eps="[0, inf)")
        check_betas(self, betas)

    def plan(self, slots: Sequence[Slot]) -> None:
        for slot in slots:
            if slot.state is None:
                zeros = np.zeros(slot.shape, slot.dtype)
                slot.state = AdamState(zeros, zeros, self.exchange.state(slot))

    async def gradient(self, slot: Slot, ranks: Ranks) -> None:
        state, (b1, b2), now = slot.state, self.betas, ranks.step + 1
        kind = slot.dtype.type
        if now <= self.warmup:
            g = await ranks.mean(slot.grad)
            state.m = kind(b1) * state.m + kind(1 - b1) * g
            state.v = kind(b2) * state.v + kind(1 - b2) * g * g
        else:
            m = np.multiply(slot.grad, kind(1 - b1), out=ranks.empty(slot.shape, slot.dtype))
            m += kind(b1) * state.m
            state.m = (await self.exchange(m, state.inner, ranks)).value
        slot.grad = self._update(state, now, ranks.empty(slot.shape, slot.dtype))

    def _update(self, state: AdamState, now: int, out: Array) -> Array:
        """In one array: a fresh one for every step of it costs more than the step."""
        kind, (b1, b2) = state.v.dtype.type, self.betas
        np.multiply(state.v, kind(1 / (1 - b2 ** min(now, self.warmup))), out=out)
        np.sqrt(out, out=out)
        out += kind(self.eps)
        np.divide(state.m, out, out=out)
        out *= kind(1 / (1 - b1**now))
        np.copyto(out, kind(0), where=state.v == 0)
        return out
