"""Levels that follow the gradients: one histogram of all ranks, and the best table for it."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from rabit.compression import Compression
from rabit.training.strategy import Array, Exchange, Ranks, Reduced, Slot

from .in_engine import InEngine
from .levels import Levels, uniform
from .programs import TwoPhase
from .ranges import check_choice, in_range

__all__ = ["FittedLevels", "best_levels", "best_powers"]

BINS = 256
Table = tuple[float, ...]


def best_levels(histogram: Array, count: int) -> Table:
    """The `count` levels from 0 to 1 with the least variance of stochastic rounding.

    histogram: how many |x|/s lie in each of equal parts of 0 to 1.  Levels lie on the edges of parts.
    Source: Ben Basat et al., "Optimal and Approximate Adaptive Stochastic Quantization", 2024 (dynamic
    program over sorted values, here over parts).
    """
    bins = len(histogram)
    edge, between = _variances(histogram)
    cost, before = between[0], []
    for _ in range(count - 2):
        step = cost[:, None] + between
        before.append(step.argmin(axis=0))
        cost = step.min(axis=0)
    at, table = bins, [1.0]
    for came_from in reversed(before):
        at = int(came_from[at])
        table.append(float(edge[at]))
    return (0.0, *reversed(table))


def best_powers(histogram: Array, count: int) -> Table:
    """0 and the powers 1, p, p², ... with the least variance; they differ in one number.

    Source: Faghri et al., 2020 (AMQ); p of 1/256 to 255/256, by trying them.
    """
    edge, between = _variances(histogram)
    tables = [(0.0, *(p**power for power in range(count - 2, -1, -1))) for p in edge[1:-1].tolist()]
    at = [np.rint(np.array(table) * len(histogram)).astype(int) for table in tables]
    costs = [sum(between[a, b] for a, b in itertools.pairwise(place) if a < b) for place in at]
    return tables[int(np.argmin(costs))]


def _variances(histogram: Array) -> tuple[Array, Array]:
    """The edges of the parts, and Σ (edge_b - r)(r - edge_a) over the parts between edges a and b."""
    bins = len(histogram)
    edge, middle = np.arange(bins + 1) / bins, (np.arange(bins) + 0.5) / bins
    sums = [np.concatenate([[0.0], np.cumsum(histogram * middle**power)]) for power in range(3)]
    n, m, s = (part[None, :] - part[:, None] for part in sums)
    between = (edge[None, :] + edge[:, None]) * m - s - edge[None, :] * edge[:, None] * n
    between[np.tril_indices(bins + 1)] = np.inf
    return edge, between


def _in_parts(table: Table) -> Array:
    """The table as the engine has it: numbers between 0 and 1 in parts of 65536."""
    parts: Array = np.rint(np.array(table) * 65536) / 65536
    parts[1:-1] = np.minimum(parts[1:-1], 65535 / 65536)
    return parts


@dataclass
class FittedState:
    """table: levels in use, replicated."""

    table: Any


@dataclass(frozen=True)
class FittedLevels(Exchange):
    """Two phases of levels, whose table is fitted to one summed histogram of |x|/‖x‖ at some steps.

    Unbiased, with the least variance that this many bits can have for the gradients of the moment.
    fit: "best" for free levels (ALQ), "powers" for 0 and powers of one number (AMQ).
    At the steps `first` and then every `every`, the histogram of 256 parts travels before, 1 KiB.  The
    table follows from it alone, so it is equal on all ranks; in between nothing is added.
    State: the table, replicated.
    Source: Faghri et al., "Adaptive Gradient Quantization for Data-Parallel SGD", 2020.
    """

    bits: int = 3
    block: int = 512
    first: int = 1
    every: int = 1000
    fit: Literal["best", "powers"] = "best"

    def __post_init__(self) -> None:
        in_range(self, bits="2..7", block="1..", first="0..", every="1..")
        check_choice("FittedLevels", "fit", self.fit, ("best", "powers"))

    def state(self, slot: Slot) -> FittedState:
        return FittedState(_in_parts(uniform(self.bits)))

    async def __call__(self, x: Array, state: FittedState, ranks: Ranks) -> Reduced:
        since = ranks.step - self.first
        if since >= 0 and since % self.every == 0:
            histogram = (await ranks.sum(self._histogram(x))).astype(np.float64)
            fitted = best_levels if self.fit == "best" else best_powers
            if 0 < histogram.sum() < np.inf:
                state.table = _in_parts(fitted(histogram, len(state.table)))
        return await self._rounding(tuple(state.table.tolist()))(x, None, ranks)

    def _rounding(self, table: Table) -> Exchange:
        if not 3 <= self.bits <= 6:  # Of 2 bits nothing is free; tables of 7 have too long a name.
            return TwoPhase(Levels(table, self.block))
        return InEngine(Compression.levels(self.bits, self.block, table))

    def _histogram(self, x: Array) -> Array:
        padded = np.zeros(-(-x.size // self.block) * self.block, x.dtype)
        padded[: x.size] = np.abs(x).reshape(-1)
        blocks = padded.reshape(-1, self.block)
        scale = blocks.max(axis=1, keepdims=True, initial=0)
        scale = np.where(np.isfinite(scale), scale, 0)
        parts = (blocks / np.where(scale > 0, scale, np.inf)).reshape(-1)
        # What a block contributes to the variance grows with the square of its norm, on whatever rank it is.
        weights = np.repeat(scale.astype(np.float64) ** 2, self.block)
        inside = (parts > 0) & (parts <= 1)
        counts, _ = np.histogram(parts[inside], BINS, (0.0, 1.0), weights=weights[inside])
        return counts.astype(np.float32)
