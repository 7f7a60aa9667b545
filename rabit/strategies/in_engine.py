"""Codecs of the engine as exchanges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rabit.compression import CompressionCodec
from rabit.training.strategy import Array, Exchange, Ranks, Reduced, Slot, Wire
from rabit.training.wire import seed_of

__all__ = ["InEngine"]


@dataclass(frozen=True)
class InEngine(Exchange):
    """`codec`, of the engine, for float32; `otherwise`, which means the same, for other types.

    Encoding, sums and the residual of error feedback around it are the engine's: in native code, in
    its threads, cut and ordered like every other tensor.  Inside another exchange as well.
    State: none for float32.  Random numbers follow from `seed`, rank, tensor, step and element.
    """

    codec: CompressionCodec
    otherwise: Exchange
    seed: int = 0

    @property
    def is_biased(self) -> bool:
        return self.otherwise.is_biased

    def wire(self, slot: Slot) -> Wire | None:
        if slot.dtype != np.float32:
            return self.otherwise.wire(slot)
        return Wire(self.codec, seed=self.seed)

    def state(self, slot: Slot) -> Any:
        return None if slot.dtype == np.float32 else self.otherwise.state(slot)

    async def __call__(self, x: Array, state: Any, ranks: Ranks) -> Reduced:
        if x.dtype != np.float32:
            return await self.otherwise(x, state, ranks)
        left = np.zeros(x.shape, x.dtype)
        seed = seed_of(self.seed, ranks.step)
        value = await ranks.mean(x, codec=self.codec, residual=left, seed=seed)
        return Reduced(value, x - left)
