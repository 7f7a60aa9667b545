"""Codecs of the engine as exchanges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rabit.compression import CompressionCodec
from rabit.training.state import leaf
from rabit.training.strategy import Array, Exchange, Ranks, Reduced, Slot, Wire
from rabit.training.wire import change_of_unit, seed_of

from .ranges import check, in_range

__all__ = ["InEngine"]

# Of parameters that mean the same in every codec; what else the engine takes it says at the first step.
_RANGES = {"ratio": "(0, 1]", "block": "1.."}


@dataclass
class SumsState:
    """of_sums: what this rank's sums lost when they were encoded again; 0 before the first step."""

    of_sums: Any = leaf(0.0, scope="local", elastic="mean")
    unit: float = 1.0


@dataclass(frozen=True)
class InEngine(Exchange):
    """`codec`, of the engine.

    Encoding, sums and the residual of error feedback around it are the engine's: in native code, in
    its threads, cut and ordered like every other tensor.  Inside another exchange as well.
    Arrays of other types than float32 are encoded as float32; what that rounds away is among what was not sent.
    State: what sums lose, for codecs that keep it.  Random numbers follow from `seed`, rank, tensor, step and
    element.
    """

    codec: CompressionCodec
    seed: int = 0

    def __post_init__(self) -> None:
        in_range(self, seed="0..")
        name, _, parameters = self.codec.spec.partition(":")
        for key, _, text in (part.partition("=") for part in parameters.split(",")):
            if key in _RANGES:
                check(name, key, float(text) if "." in text else int(text), _RANGES[key])

    @property
    def is_biased(self) -> bool:
        return self.codec.is_biased

    @property
    def is_noisy(self) -> bool:
        return self.codec.is_noisy

    def wire(self, slot: Slot) -> Wire | None:
        return Wire(self.codec, seed=self.seed) if slot.dtype == np.float32 else None

    def state(self, slot: Slot) -> SumsState | None:
        return SumsState() if self.codec.residuals == 2 else None

    async def __call__(self, x: Array, state: SumsState | None, ranks: Ranks) -> Reduced:
        value, left = await self.with_residual(x, np.zeros_like(x), 1.0, state, ranks)
        return Reduced(value, x - left)

    async def with_residual(
        self, x: Array, residual: Array, factor: float, state: SumsState | None, ranks: Ranks
    ) -> tuple[Array, Array]:
        if x.dtype == np.float32:
            return await self._exchange(x, residual, factor, state, ranks)
        whole = x + residual * x.dtype.type(factor)
        with np.errstate(over="ignore"):  # What float32 cannot hold arrives as infinity.
            single = whole.astype(np.float32)
        value, left = await self._exchange(single, np.zeros_like(single), 1.0, state, ranks)
        sent = single.astype(x.dtype) - left
        return value.astype(x.dtype), whole - sent

    async def _exchange(
        self, x: Array, residual: Array, factor: float, state: SumsState | None, ranks: Ranks
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
