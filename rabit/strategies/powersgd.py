"""PowerSGD: gradients of matrices as products of two thin ones."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rabit.training.noise import generator
from rabit.training.strategy import Array, Exchange, Ranks, Reduced, Slot, Wire
from rabit.training.thin_matrix import thin_matrix

from .ranges import in_range

__all__ = ["PowerSGD"]


@dataclass
class PowerState:
    """q: the right factor of the step before, times a power of two, from which the next begins; equal on all ranks."""

    q: Array


@dataclass(frozen=True)
class PowerSGD(Exchange):
    """P = orth(mean(M_i Q));  Q = mean(M_iᵀ P);  x' = P Qᵀ;  sent = P P ᵀM_i.

    A tensor is the matrix of its first dimension and the rest.  Vectors, and matrices that would gain
    less than `min_rate`, go as plain means.  Two rounds of r·n and r·m elements in place of n·m.
    rank: columns of the factors; 1 to 4, 32 for language models.
    State: Q, replicated.  Needs error feedback around it, whose residual is this rank's own.  Every
    rank computes P by itself: in float64 the ranks need machines of one kind.
    Source: Vogels et al., "PowerSGD: Practical Low-Rank Gradient Compression", 2019.
    """

    rank: int = 2
    min_rate: float = 2.0
    seed: int = 0

    def __post_init__(self) -> None:
        in_range(self, rank="1..", min_rate="[0, inf)", seed="0..")

    @property
    def is_biased(self) -> bool:
        return True

    def _columns(self, slot: Slot) -> int:
        """Columns of the factors; 0 where the plain mean is better."""
        if len(slot.shape) < 2 or 0 in slot.shape:
            return 0
        n, m = slot.shape[0], math.prod(slot.shape[1:])
        columns = min(self.rank, n, m)
        return columns if (n + m) * columns * self.min_rate < n * m else 0

    def wire(self, slot: Slot) -> Wire | None:
        return None if self._columns(slot) else Wire()

    def state(self, slot: Slot) -> PowerState | None:
        columns = self._columns(slot)
        if not columns:
            return None
        shape = (math.prod(slot.shape[1:]), columns)
        normal = generator(self.seed, slot.name, 0).standard_normal(shape)
        return PowerState(normal.astype(slot.dtype))

    async def __call__(self, x: Array, state: PowerState | None, ranks: Ranks) -> Reduced:
        if state is None:
            return Reduced(await ranks.mean(x))
        value, left = await self.with_residual(x, None, 1.0, state, ranks)
        return Reduced(value, x - left)

    async def with_residual(
        self,
        x: Array,
        residual: Array | None,
        factor: float,
        state: PowerState | None,
        ranks: Ranks,
    ) -> tuple[Array, Array]:
        if state is None:
            assert residual is not None
            return await super().with_residual(x, residual, factor, state, ranks)
        matrix = thin_matrix(x, residual, factor, state.q, ranks)
        p = matrix.orthonormal(await ranks.mean(matrix.left))
        mine = matrix.transposed_times(p)
        q = await ranks.mean(mine)
        value = matrix.expand(p, q, mine)
        state.q = _near_one(q)
        return value.reshape(x.shape), matrix.rest.reshape(x.shape)


def _near_one(q: Array) -> Array:
    """q times the power of two that brings its largest entry to at most 1.

    The next P spans the same.  As it is, q has the size of gradients, and M·q that of
    their squares, which float32 holds from 1e-19 to 1e19 only.
    """
    scaled: Array = np.ldexp(q, -np.frexp(np.abs(q).max())[1])
    return scaled
