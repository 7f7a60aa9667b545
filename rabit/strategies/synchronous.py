"""Every gradient in every step: data-parallel training as it is known, through any exchange."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rabit.compression import Compression, CompressionCodec
from rabit.training.strategy import Array, Exchange, Ranks, Reduced, Slot, Strategy, Wire

from .ranges import in_range

__all__ = ["Bypass", "Mean", "Synchronous"]


@dataclass(frozen=True)
class Mean(Exchange):
    """The mean of the gradients, x' = (1/W) Σ x_i.

    codec: of the engine, as Compression.bf16.
    State: none.  One round, which the engine does by itself: fused, cut and ordered there.
    Source: Li et al., "PyTorch Distributed", 2020.
    """

    codec: CompressionCodec = Compression.none

    def wire(self, slot: Slot) -> Wire | None:
        return Wire(self.codec)

    async def __call__(self, x: Array, state: Any, ranks: Ranks) -> Reduced:
        return Reduced(await ranks.mean(x, codec=self.codec))


@dataclass(frozen=True)
class Bypass(Exchange):
    """`inner` for what is large; `small` for vectors and whatever has few bytes.

    Biases and normalisations take little of the wire, and suffer most from what a codec does.
    State: that of the one or the other.
    """

    inner: Exchange
    below_bytes: int = 64 * 1024
    small: Exchange = Mean()

    def __post_init__(self) -> None:
        in_range(self, below_bytes="0..")

    @property
    def is_biased(self) -> bool:
        return self.inner.is_biased

    def _chosen(self, like: Slot | Array) -> Exchange:
        is_small = math.prod(like.shape) * like.dtype.itemsize < self.below_bytes
        return self.small if is_small or (self.below_bytes and len(like.shape) < 2) else self.inner

    def takes(self, slot: Slot) -> bool:
        return self._chosen(slot) is self.inner

    def wire(self, slot: Slot) -> Wire | None:
        return self._chosen(slot).wire(slot)

    def state(self, slot: Slot) -> Any:
        return self._chosen(slot).state(slot)

    async def __call__(self, x: Array, state: Any, ranks: Ranks) -> Reduced:
        return await self._chosen(x)(x, state, ranks)


class Synchronous(Strategy):
    """Every gradient in every step, each by `exchange`."""

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange

    def __repr__(self) -> str:
        return f"Synchronous({self.exchange!r})"

    def plan(self, slots: Sequence[Slot]) -> None:
        for slot in slots:
            wire = self.exchange.wire(slot)
            if slot.state is None and (wire is None or wire.decay is not None):
                slot.state = self.exchange.state(slot)

    def wire(self, slot: Slot) -> Wire | None:
        return self.exchange.wire(slot)

    async def gradient(self, slot: Slot, ranks: Ranks) -> None:
        wire = self.exchange.wire(slot)
        if wire is not None:
            residual, seed = wire.operands(slot, ranks.step)
            slot.grad = await ranks.mean(slot.grad, codec=wire.codec, residual=residual, seed=seed)
            return
        ranks.result = slot.grad if slot.is_result else None
        slot.grad = (await self.exchange(slot.grad, slot.state, ranks)).value
