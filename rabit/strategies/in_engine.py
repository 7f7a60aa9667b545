"""Codecs of the engine as exchanges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rabit.compression import CompressionCodec
from rabit.training.state import leaf
from rabit.training.strategy import Array, Exchange, Ranks, Reduced, Slot, Wire
from rabit.training.wire import change_of_unit, seed_of

from .ranges import in_range

__all__ = ["InEngine"]


@dataclass
class SumsState:
    """of_sums: what this rank's sums lost when they were encoded again; 0 before the first step."""

    of_sums: Any = leaf(0.0, scope="local", elastic="mean")
    unit: float = 1.0


@dataclass(frozen=True)
class InEngine(Exchange):
    """`codec`, of the engine, for float32; `otherwise`, which means the same, for other types.

    Encoding, sums and the residual of error feedback around it are the engine's: in native code, in
    its threads, cut and ordered like every other tensor.  Inside another exchange as well.
    State: what sums lose, for codecs that keep it; else none for float32.  Random numbers follow from
    `seed`, rank, tensor, step and element.
    """

    codec: CompressionCodec
    otherwise: Exchange
    seed: int = 0

    def __post_init__(self) -> None:
        in_range(self, seed="0..")

    @property
    def is_biased(self) -> bool:
        return self.otherwise.is_biased

    @property
    def is_noisy(self) -> bool:
        return self.otherwise.is_noisy or "norm=l2" in self.codec.spec

    def wire(self, slot: Slot) -> Wire | None:
        if slot.dtype != np.float32:
            return self.otherwise.wire(slot)
        return Wire(self.codec, seed=self.seed)

    def state(self, slot: Slot) -> Any:
        if slot.dtype != np.float32:
            return self.otherwise.state(slot)
        return SumsState() if self.codec.residuals == 2 else None

    async def __call__(self, x: Array, state: Any, ranks: Ranks) -> Reduced:
        if x.dtype != np.float32:
            return await self.otherwise(x, state, ranks)
        value, left = await self._exchange(x, np.zeros_like(x), 1.0, state, ranks)
        return Reduced(value, x - left)

    async def with_residual(
        self, x: Array, residual: Array, factor: float, state: Any, ranks: Ranks
    ) -> tuple[Array, Array]:
        if x.dtype != np.float32:
            return await self.otherwise.with_residual(x, residual, factor, state, ranks)
        return await self._exchange(x, residual, factor, state, ranks)

    async def _exchange(
        self, x: Array, residual: Array, factor: float, state: Any, ranks: Ranks
    ) -> tuple[Array, Array]:
        left = ranks.empty((self.codec.residuals, *x.shape), x.dtype)
        np.multiply(residual, x.dtype.type(factor), out=left[0])
        left[1:] = 0
        if state is not None:
            change = change_of_unit(state.unit, ranks.unit)
            np.multiply(state.of_sums, x.dtype.type(change), out=left[1])
        seed = seed_of(self.seed, ranks.step)
        value = await ranks.mean(x, codec=self.codec, residual=left, seed=seed)
        if state is not None and ranks.unit:
            state.of_sums, state.unit = left[1], ranks.unit
        return value, left[0]
