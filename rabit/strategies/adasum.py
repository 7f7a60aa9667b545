"""Adasum: gradients that agree are averaged, gradients that are orthogonal are added."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rabit.training.strategy import Array, Exchange, Ranks, Reduced

__all__ = ["AdaptiveSum"]


@dataclass(frozen=True)
class AdaptiveSum(Exchange):
    """a, b → (1 - a·b/2|a|²)·a + (1 - a·b/2|b|²)·b, along a binary tree over the ranks, of any number.

    Every rank combines one slice of all vectors; the scalar products of each level are summed.  Twice
    the bytes of a mean, and one small round a level.
    State: none.  Equal arrays give their mean, orthogonal ones their sum.
    Source: Maleki et al., "Scaling Distributed Training with Adaptive Summation", 2021.
    """

    async def __call__(self, x: Array, state: Any, ranks: Ranks) -> Reduced:
        wide = np.result_type(x.dtype, np.float32)
        vectors = await ranks.scatter(np.array_split(x.reshape(-1).astype(wide), ranks.size))
        while len(vectors) > 1:
            pairs = [(vectors[at], vectors[at + 1]) for at in range(0, len(vectors) - 1, 2)]
            local = np.array([_products(a, b) for a, b in pairs])
            products = await ranks.sum(local)
            vectors = [
                *(_combined(a, b, product) for (a, b), product in zip(pairs, products, strict=True)),
                *vectors[2 * len(pairs) :],
            ]
        total = np.concatenate(await ranks.gather(vectors[0])).reshape(x.shape)
        return Reduced(total.astype(x.dtype, copy=False))


def _products(a: Array, b: Array) -> list[float]:
    a, b = a.astype(np.float64), b.astype(np.float64)
    return [float(a @ b), float(a @ a), float(b @ b)]


def _combined(a: Array, b: Array, products: Array) -> Array:
    dot, aa, bb = products.tolist()
    of_a = 1.0 - dot / (2.0 * aa) if aa > 0.0 else 1.0
    of_b = 1.0 - dot / (2.0 * bb) if bb > 0.0 else 1.0
    combined: Array = a * a.dtype.type(of_a) + b * b.dtype.type(of_b)
    return combined
