"""Hierarchies: full precision between ranks that are near, an exchange between those that are far."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rabit.engine.current import current_engine
from rabit.errors import InvalidArgument
from rabit.training.islands import islands_of
from rabit.training.state import leaf
from rabit.training.strategy import Array, Exchange, Ranks, Reduced, Slot

from .ranges import in_range

__all__ = ["Hierarchical"]


@dataclass
class _Part:
    """The rows of a slot that one rank of an island sends; what `Exchange.state` looks at."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    priority: int
    lr: float
    is_result: bool = False
    is_frozen: bool = False
    value: Any = None
    grad: Any = None
    state: Any = None


@dataclass
class HierarchicalState:
    """inner: of this rank's rows, which are those of no other rank of its island."""

    inner: Any = leaf(None, scope="local")


@dataclass(frozen=True)
class Hierarchical(Exchange):
    """y = mean over the island of rank i;  x' = inner(y) between islands, each rank for its rows of y.

    island: ranks of an island, successive ones; 0: the ranks of a host are one.  Islands have one size.
    Between islands a rank sends 1/island of what `inner` alone would send.  One island: the mean.
    State: the inner exchange's, of this rank's rows.  Error feedback goes around it, or inside.
    Needs all ranks of the job.  Refuses a process set, and islands of several sizes.
    Source: Gan et al., "BAGUA" (hierarchical communication), 2021; Jia et al., "Highly Scalable Deep
    Learning Training System with Mixed-Precision", 2018.
    """

    inner: Exchange
    island: int = 0
    needs_of_ranks = "its islands have the same number of ranks each"

    def __post_init__(self) -> None:
        in_range(self, island="0..")

    @property
    def is_biased(self) -> bool:
        return self.inner.is_biased

    def state(self, slot: Slot) -> HierarchicalState:
        inside = islands_of(current_engine(), self.island).inside
        rows = np.empty(slot.shape[0] if slot.shape else 1, np.bool_)
        mine = len(np.array_split(rows, len(inside.ranks))[inside.index])
        shape = (mine, *slot.shape[1:])
        part = _Part(slot.name, shape, slot.dtype, slot.priority, slot.lr)
        return HierarchicalState(self.inner.state(part))

    async def __call__(self, x: Array, state: HierarchicalState, ranks: Ranks) -> Reduced:
        islands = islands_of(ranks.engine, self.island)
        inside, across = ranks.within(islands.inside), ranks.within(islands.across)
        if inside.size * across.size != ranks.size:
            raise InvalidArgument(
                f"'{ranks.name}': a hierarchy of {across.size} islands of {inside.size} ranks is for all "
                f"ranks of the job, and the optimizer has a process set of {ranks.size}. Give the "
                "optimizer no process set."
            )
        if across.size == 1:
            return Reduced(await ranks.mean(x))
        parts = np.array_split(x if x.ndim else x.reshape(1), inside.size)
        mine = parts[inside.rank]
        total = np.zeros_like(mine)
        for part in await inside.scatter(parts):
            total += part
        mean = (total / inside.size).astype(x.dtype, copy=False)
        found = await self.inner(mean, state.inner, across)
        value = np.concatenate(await inside.gather(found.value)).reshape(x.shape)
        if found.sent is None:
            return Reduced(value)
        # What the island has not sent is left with the rank of these rows, as its share of the mean.
        left = (mean - found.sent) * x.dtype.type(inside.size)
        sent = [*parts[: inside.rank], mine - left, *parts[inside.rank + 1 :]]
        return Reduced(value, np.concatenate(sent).reshape(x.shape))
