"""DABMD: each rank does what it manages, steps by a mirror map, and averages with its neighbours."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from rabit.training.strategy import Array, Ranks, Slot, Strategy

from .gossip import Graph, check_graph, graph_weights, swap_with_neighbours
from .mirror_maps import Euclidean, MirrorMap
from .ranges import in_range

__all__ = ["AnyBatchMirrorDescent"]


class AnyBatchMirrorDescent(Strategy):
    """x_i = mirror(y_i, g_i/b_i, η);  then, `rounds` times, y_i = Σ_j P_ij b_j x_j / Σ_j P_ij b_j.

    b_i: samples that rank i has managed in this step.  The data loop sets `samples` before the backward
    pass ends, and takes the gradient g_i of the sum of the losses (see Deadline).  0 samples: no step, and
    no weight.  by_samples False: every rank has weight 1, as in the paper.
    graph, rounds: as of Gossip, a function of the step where the graph varies, as when messages are lost.
    Ranks that are all neighbours, by samples: one step on the union of the samples.
    A parameter that is frozen is left alone.
    State: none besides the parameters, which differ between ranks.
    Needs plain SGD without weight decay as optimizer, in place of whose step comes that of the map.
    Source: Eshraghi and Liang, "Distributed Online Optimization over a Heterogeneous Network with
    Any-Batch Mirror Descent", 2020.
    """

    uses_step = True
    has_momentum = True  # The optimizer must have none: its step is the map's.
    gives_steps = True
    replaces_step = True
    own_of_rank = ("samples",)

    def __init__(
        self,
        mirror: MirrorMap | None = None,
        graph: Graph = "all",
        rounds: int = 1,
        *,
        by_samples: bool = True,
    ) -> None:
        self.mirror, self.graph, self.rounds = mirror or Euclidean(), graph, rounds
        in_range(self, rounds="1..")
        check_graph(self, graph)
        if not isinstance(graph, str):
            self.needs_of_ranks = "its graph names the ranks that there are now"
        self.by_samples = by_samples
        self.samples = 0
        self._slots: Sequence[Slot] = ()
        self._before: list[Array] = []

    def plan(self, slots: Sequence[Slot]) -> None:
        self._slots = slots

    async def gradient(self, slot: Slot, ranks: Ranks) -> None:
        slot.grad = slot.grad / slot.dtype.type(max(self.samples, 1))

    async def before_step(self, ranks: Ranks) -> None:
        self._before = [slot.value.copy() for slot in self._slots]

    async def after_step(self, ranks: Ranks) -> None:
        weights = graph_weights(self.graph, ranks.size, ranks.step - 1)
        moves = []
        for slot, before in zip(self._slots, self._before, strict=True):
            if slot.is_frozen:
                continue
            # A parameter without a gradient continues being agreed on.
            has_moved = self.samples and slot.grad is not None
            x = self.mirror(before, slot.grad, slot.lr) if has_moved else before
            body = functools.partial(self._move, slot, x, weights)
            moves.append(ranks.start(body, name=f"mirror.{slot.name}"))
        for move in moves:
            await move

    async def _move(self, slot: Slot, x: Array, weights: Array, ranks: Ranks) -> None:
        mine = weights[ranks.rank]
        weight = float(self.samples) if self.by_samples else 1.0
        # Ratio of two averages: it is right whatever the ranks' samples, and weights need not add up.
        top, bottom = x * x.dtype.type(weight), weight
        for _ in range(self.rounds):
            found = await swap_with_neighbours((top, bottom), weights, ranks)
            found[ranks.rank] = (top, bottom)
            top, bottom = np.zeros_like(x), 0.0
            for rank in sorted(found):  # In one order, so that ranks among all have equal bits.
                top = top + top.dtype.type(mine[rank]) * found[rank][0]
                bottom += float(mine[rank]) * found[rank][1]
        if bottom > 0:  # Else no one within reach has managed a sample.
            slot.value = top / top.dtype.type(bottom)
        else:
            slot.value = x
