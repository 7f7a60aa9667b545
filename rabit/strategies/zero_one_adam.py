"""0/1 Adam: Adam whose variance is refreshed ever less often, and whose ranks step alone in between."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rabit.errors import InvalidArgument
from rabit.training.state import leaf
from rabit.training.strategy import Array, Exchange, Ranks, Slot, Strategy

from .ranges import check, check_betas, in_range

__all__ = ["ZeroOneAdam"]


@dataclass
class ZeroOneState:
    """anchor: where the ranks were together last.  sum: Σ η·m since then, and `lr` Σ η.

    times: how often v was refreshed.
    """

    v: Array
    anchor: Array
    m: Array = leaf(scope="local")
    sum: Array = leaf(scope="local", elastic="mean")
    lr: float = 0.0
    times: int = 0
    inner: Any = None


@dataclass(frozen=True)
class Calendar:
    """When v takes another gradient, and when ranks meet; see ZeroOneAdam."""

    start: int
    refresh: int
    grow: int
    every: int

    def __post_init__(self) -> None:
        for name in ("start", "refresh", "grow", "every"):
            check("ZeroOneAdam", name, getattr(self, name), "1..")

    def refreshes(self, step: int) -> bool:
        """True where the variance takes another gradient."""
        at, times = 0, 0
        while at < min(step + 1, self.start):
            if at == step:
                return True
            at += 2 ** (times // self.refresh)
            times += 1
        return False

    def meets(self, step: int) -> bool:
        """True where the ranks come together after `step`."""
        alone = step - self.start
        if alone < 0:
            return True
        interval = int(min(2 ** min(alone // self.grow, 30), self.every))
        return (alone + 1) % interval == 0


class ZeroOneAdam(Strategy):
    """m_i = β₁·m_i + (1-β₁)·g_i;  u_i = u_i + η·m_i;  x_i = x_i - η·m_i/(√v + ε), η = lr/(1-β₁^t).

    When ranks meet: ū = exchange(u_i);  m_i = ū/Ση;  x_i = anchor - ū/(√v + ε);  u_i = 0.

    v is refreshed from the mean gradient ḡ in the step 0, and then after 2^⌊j/refresh⌋ steps for the j-th
    time, as long as ranks meet in every step: until `start`.  There m takes ḡ as well, and no more travels.
    From `start` on v stays, and ranks meet every 2^⌊(t - start)/grow⌋ steps, `every` at most.
    What a program changes in parameters right after a meeting, on all ranks, moves the anchor; what it changes
    while ranks step alone is gone when they meet.
    No entry moves further than Adam can, `bound`·Ση: a v that is not refreshed may be far below the g² of
    today, and signs move every entry of a block alike.  Refreshed in every step, it is Adam.
    exchange: error feedback over two phases of signs.  Where v is 0, nothing moves.
    State: v and the anchor, replicated; m and u, local; and the exchange's.
    Needs plain SGD without weight decay as optimizer, whose step this is, and a learning rate above 0 where ranks meet.
    Refuses updates that are put off (overlap="next-forward").
    Source: Lu et al., "Maximizing Communication Efficiency for Large-scale Training via 0/1 Adam", 2022.
    """

    has_momentum = True
    gives_steps = True
    replaces_step = True
    uses_step = True

    def __init__(
        self,
        exchange: Exchange,
        start: int,
        *,
        refresh: int = 16,
        grow: int = 1000,
        every: int = 16,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        self.exchange, self.betas, self.eps = exchange, betas, eps
        self.calendar = Calendar(start, refresh, grow, every)
        in_range(self, eps="[0, inf)")
        check_betas(self, betas)
        self.bound = adam_bound(*betas)
        self._slots: Sequence[Slot] = ()
        self._met: list[tuple[Slot, Array]] = []  # parameters as the last meeting has left them

    def plan(self, slots: Sequence[Slot]) -> None:
        self._slots = slots
        for slot in slots:
            if slot.state is None:
                zeros = np.zeros(slot.shape, slot.dtype)
                value = slot.value.copy()
                inner = self.exchange.state(slot)
                slot.state = ZeroOneState(zeros, value, zeros, zeros, inner=inner)

    async def gradient(self, slot: Slot, ranks: Ranks) -> None:
        state, kind, (b1, b2) = slot.state, slot.dtype.type, self.betas
        g, is_mean = slot.grad, self.calendar.refreshes(ranks.step)
        if is_mean:
            g = await ranks.mean(g)
            state.v = kind(b2) * state.v + kind(1 - b2) * g * g
            state.times += 1
        state.m = kind(b1) * state.m + kind(1 - b1) * g
        correction = 1 / (1 - b1 ** (ranks.step + 1))
        state.sum = state.sum + kind(slot.lr * correction) * state.m
        state.lr += slot.lr * correction
        if self.calendar.meets(ranks.step):
            check_rates(state.lr, slot, ranks)
            # Before `start` ranks have met in the step before: with the mean gradient they have one sum.
            if not is_mean:
                state.sum = (await self.exchange(state.sum, state.inner, _whole(ranks))).value
            state.m = state.sum / kind(state.lr)
        slot.grad = self._over_root(kind(correction) * state.m, correction, state)

    async def before_step(self, ranks: Ranks) -> None:
        for slot, met in self._met:
            # A program may have clamped, loaded or broadcast parameters since.
            if not np.array_equal(slot.value, met):
                slot.state.anchor = slot.state.anchor + (slot.value - met)

    async def after_step(self, ranks: Ranks) -> None:
        self._met = []
        if not self.calendar.meets(ranks.step - 1):
            return
        for slot in self._slots:
            state = slot.state
            if slot.grad is None and state.lr:  # Frozen since the ranks stepped alone: they meet once more.
                state.sum = (await self.exchange(state.sum, state.inner, _whole(ranks))).value
            state.anchor = state.anchor - self._over_root(state.sum, state.lr, state)
            slot.value = state.anchor
            state.sum, state.lr = np.zeros_like(state.sum), 0.0
        self._met = [(slot, slot.value.copy()) for slot in self._slots]

    def load(self, state: Any) -> None:
        self._met = []  # The anchor that was loaded is of the parameters that were.

    def _over_root(self, x: Array, rates: float, state: ZeroOneState) -> Array:
        """x/(√v + ε), within the bound.  rates: those that x holds, added up."""
        kind, times = state.v.dtype.type, max(state.times, 1)  # A frozen parameter has none.
        root = np.sqrt(state.v / kind(1 - self.betas[1] ** times)) + kind(self.eps)
        return bounded(x / root, kind(self.bound * rates), state.v != 0)


def check_rates(rates: float, slot: Slot, ranks: Ranks) -> None:
    """Raises InvalidArgument where their sum is 0."""
    if not rates:
        raise InvalidArgument(
            f"'{slot.name}' on rank {ranks.rank}: 0/1 Adam divides by the sum of the learning rates "
            f"since the ranks met last, which is 0 in step {ranks.step}. Keep it above zero."
        )


def bounded(moves: Array, most: Any, is_known: Array) -> Array:
    """Within ±most, and 0 where nothing is known of the gradients."""
    # What is infinite stays so: it is to be seen in the parameters, not to pass for a long step.
    within = np.where(np.isinf(moves), moves, np.clip(moves, -most, most))
    found: Array = np.where(is_known, within, moves.dtype.type(0))
    return found


def adam_bound(b1: float, b2: float) -> float:
    """The most that |m̂|/√v̂ of Adam can be, whatever the gradients; 7.27 for the usual betas.

    By the inequality of Cauchy and Schwarz: (Σ aᵢgᵢ)² ≤ Σ bᵢgᵢ²·Σ aᵢ²/bᵢ, where aᵢ = (1-β₁)·β₁ⁱ are the
    weights of m and bᵢ = (1-β₂)·β₂ⁱ those of v.  There is none where β₁² ≥ β₂.
    """
    return (1 - b1) / math.sqrt((1 - b2) * (1 - b1 * b1 / b2)) if b1 * b1 < b2 < 1 else math.inf


def _whole(ranks: Ranks) -> Ranks:
    """What travels is in units of the parameter: its residuals follow no learning rate."""
    ranks.unit = 1.0
    return ranks
