"""The two ways in which encodings that cannot be added travel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rabit.training.state import leaf
from rabit.training.strategy import Array, Exchange, Ranks, Reduced, Slot
from rabit.training.wire import change_of_unit

from .codecs import Codec, is_noisy, randomness
from .ranges import in_range

__all__ = ["Gathered", "TwoPhase"]


@dataclass(frozen=True)
class Gathered(Exchange):
    """Every rank gets all encodings, and adds them up in rank order: x' = (1/W) Σ D(C(x_i)).

    For sparse encodings, and for few ranks: what a rank receives grows with their number.
    State: none.
    """

    codec: Codec
    seed: int = 0

    def __post_init__(self) -> None:
        in_range(self, seed="0..")

    @property
    def is_biased(self) -> bool:
        return self.codec.is_biased

    @property
    def is_noisy(self) -> bool:
        return is_noisy(self.codec)

    async def __call__(self, x: Array, state: Any, ranks: Ranks) -> Reduced:
        flat = x.reshape(-1)
        mine = self.codec.encode(flat, randomness(self.seed, ranks))
        total = np.zeros_like(flat)
        for code in await ranks.gather(mine):
            total += self.codec.decode(code, flat)
        value = (total / ranks.size).astype(x.dtype, copy=False)
        return Reduced(value.reshape(x.shape), self.codec.decode(mine, flat).reshape(x.shape))


@dataclass
class TwoPhaseState:
    """residual: of the part that this rank adds up; 0 before the first step.  unit: what it is in."""

    residual: Any = leaf(0.0, scope="local", elastic="zero")
    unit: float = 1.0


@dataclass(frozen=True)
class TwoPhase(Exchange):
    """Each rank adds one part of all encodings, and encodes the sum once more.

    s_r = (1/W) Σ_i D(C(x_i[r])) + e_r;  x'[r] = D(C(s_r));  e_r = s_r - x'[r] with `second_feedback`.
    Twice the encoded bytes, whatever the number of ranks; encodings of encodings do not pile up, as
    they would along a ring.
    State: with `second_feedback` the residual of this rank's part.
    Source: Tang et al., "1-bit Adam", 2021; Gan et al., "BAGUA" (ByteGrad), 2021.
    """

    codec: Codec
    second_feedback: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        in_range(self, seed="0..")

    @property
    def is_biased(self) -> bool:
        return self.codec.is_biased

    @property
    def is_noisy(self) -> bool:
        return is_noisy(self.codec)

    def state(self, slot: Slot) -> TwoPhaseState | None:
        return TwoPhaseState() if self.second_feedback else None

    async def __call__(self, x: Array, state: TwoPhaseState | None, ranks: Ranks) -> Reduced:
        codec, random = self.codec, randomness(self.seed, ranks)
        parts = np.array_split(x.reshape(-1), ranks.size)
        mine = [codec.encode(part, random) for part in parts]
        own = parts[ranks.rank]
        total = np.zeros_like(own)
        for code in await ranks.scatter(mine):
            total += codec.decode(code, own)
        total = (total / ranks.size).astype(x.dtype, copy=False)
        if state is not None:  # Like error feedback, it follows the learning rate.
            factor = x.dtype.type(change_of_unit(state.unit, ranks.unit))
            total = total + np.asarray(state.residual, x.dtype) * factor
        again = codec.encode(total, randomness(self.seed + 1, ranks))
        if state is not None and ranks.unit:
            state.residual, state.unit = total - codec.decode(again, own), ranks.unit
        pieces = zip(await ranks.gather(again), parts, strict=True)
        value = np.concatenate([codec.decode(code, like) for code, like in pieces])
        sent = np.concatenate([codec.decode(c, like) for c, like in zip(mine, parts, strict=True)])
        return Reduced(value.reshape(x.shape), sent.reshape(x.shape))
