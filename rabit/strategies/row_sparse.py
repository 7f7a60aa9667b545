"""Tables of which few rows are used: only those travel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rabit.training.strategy import Array, Exchange, Ranks, Reduced

__all__ = ["RowSparse"]


@dataclass(frozen=True)
class RowSparse(Exchange):
    """The rows that are not zero, with their places; the plain mean where that would be no less.

    Two rounds: places, then rows; what is to be done in the second follows from the first, which all
    ranks have seen.  Sums in rank order.
    State: none.
    """

    async def __call__(self, x: Array, state: Any, ranks: Ranks) -> Reduced:
        rows = np.flatnonzero(np.any(x != 0, axis=tuple(range(1, x.ndim))))
        places = await ranks.gather(rows.astype(np.int32 if len(x) < 1 << 31 else np.int64))
        if sum(map(len, places)) >= 2 * len(x):
            return Reduced(await ranks.mean(x))
        total = np.zeros_like(x)
        for place, values in zip(places, await ranks.gather(x[rows]), strict=True):
            total[place] += values
        return Reduced((total / ranks.size).astype(x.dtype, copy=False))
