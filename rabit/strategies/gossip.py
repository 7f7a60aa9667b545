"""Gossip: ranks average with their neighbours in a graph."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any, Literal

import numpy as np

from rabit.errors import InvalidArgument
from rabit.training.noise import generator
from rabit.training.strategy import Array, Ranks, Slot, Strategy

from .ranges import check, check_choice, in_range

__all__ = ["Gossip", "Graph", "graph_weights", "losing_links", "matchings", "swap_with_neighbours"]

Neighbours = Mapping[int, Sequence[int]]
Graph = Literal["ring", "all"] | Neighbours | Callable[[int], Neighbours]


class Gossip(Strategy):
    """x_i = Σ_j P_ij x_j over rank i and its neighbours, `rounds` times after every `every` updates.

    graph: "ring", "all", or the neighbours of every rank; if rank a names rank b, b names a.  A function
    of the step, equal on all ranks, where the graph varies: see losing_links.
    P_ij = 1/(1 + max(degree_i, degree_j)) for neighbours, the rest stays at home, so that the mean of
    the ranks is conserved and their distance from it shrinks by P's second largest eigenvalue a round.
    A parameter that is frozen is left alone.
    State: none besides the parameters, which differ between ranks.
    Source: Xiao and Boyd, "Fast Linear Iterations for Distributed Averaging", 2004 (Metropolis weights);
    Lian et al., "Can Decentralized Algorithms Outperform Centralized Algorithms?", 2017.
    """

    uses_step = True

    def __init__(self, graph: Graph = "ring", rounds: int = 1, every: int = 1) -> None:
        self.graph, self.rounds, self.every = graph, rounds, every
        in_range(self, rounds="1..", every="1..")
        check_graph(self, graph)
        if not isinstance(graph, str):
            self.needs_of_ranks = "its graph names the ranks that there are now"
        self._slots: Sequence[Slot] = ()

    def plan(self, slots: Sequence[Slot]) -> None:
        self._slots = slots

    async def after_step(self, ranks: Ranks) -> None:
        if ranks.step % self.every:
            return
        weights = graph_weights(self.graph, ranks.size, ranks.step - 1)
        moves = [
            ranks.start(functools.partial(self._move, slot, weights), name=f"gossip.{slot.name}")
            for slot in self._slots
            if not slot.is_frozen
        ]
        for move in moves:
            await move

    async def _move(self, slot: Slot, weights: Array, ranks: Ranks) -> None:
        value, kind, mine = slot.value, slot.dtype.type, weights[ranks.rank]
        for _ in range(self.rounds):
            found = await swap_with_neighbours(value, weights, ranks)
            value = kind(mine[ranks.rank]) * value
            for peer in sorted(found):
                value = value + kind(mine[peer]) * found[peer]
        slot.value = value


async def swap_with_neighbours(x: Any, weights: Array, ranks: Ranks) -> dict[int, Any]:
    """What each neighbour of this rank in the graph of `weights` sent, by rank; each gets x.

    With one of them after the other, who has this rank at the same time: all at once, a ring would go around one link
    after the other, as each rank takes its messages in the order that all ranks have agreed on.
    """
    found: dict[int, Any] = {}
    for pairs in matchings(weights):
        peers = [pairs[ranks.rank]] if ranks.rank in pairs else []
        found.update(zip(peers, await ranks.swap(x, peers), strict=True))
    return found


def matchings(weights: Array) -> list[dict[int, int]]:
    """The links of a graph in groups, in each of which a rank has one at most, as partners both ways.

    The same on all ranks.  Greedy: a ring of an even number of ranks takes two groups, one of an odd number three.
    """
    groups: list[dict[int, int]] = []
    for one, other in np.argwhere(np.triu(weights, 1)).tolist():
        free = (group for group in groups if one not in group and other not in group)
        group = next(free, None)
        if group is None:
            groups.append(group := {})
        group[one], group[other] = other, one
    return groups


def check_graph(method: Strategy, graph: Graph) -> None:
    """Raises InvalidArgument for the name of a graph that there is not."""
    if isinstance(graph, str):
        check_choice(type(method).__name__, "graph", graph, ("ring", "all"))


def graph_weights(graph: Graph, size: int, step: int) -> Array:
    """The matrix P of a graph of `size` ranks in a step; refuses the name of an unknown graph."""
    if callable(graph):
        graph = graph(step)
    elif isinstance(graph, str):
        graph = named_graph(graph, size)
    neighbours = {rank: set(graph.get(rank, ())) - {rank} for rank in range(size)}
    for rank, peers in neighbours.items():
        for peer in peers:
            if not 0 <= peer < size or rank not in neighbours[peer]:
                raise InvalidArgument(
                    f"the graph of step {step} has {peer} as a neighbour of rank {rank}, and not the other "
                    f"way round among {size} ranks. Name both."
                )
    weights = np.zeros((size, size))
    for rank, peers in neighbours.items():
        shares = {peer: Fraction(1, 1 + max(len(peers), len(neighbours[peer]))) for peer in peers}
        # In fractions, so that ranks which are all neighbours have one weight, to the last bit.
        shares[rank] = 1 - sum(shares.values(), Fraction(0))
        for peer, share in shares.items():
            weights[rank, peer] = float(share)
    return weights


def named_graph(name: Literal["ring", "all"], size: int) -> Neighbours:
    """The neighbours of every rank."""
    if name == "all":
        return {rank: [peer for peer in range(size) if peer != rank] for rank in range(size)}
    return {rank: [(rank - 1) % size, (rank + 1) % size] for rank in range(size)}


def losing_links(
    graph: Literal["ring", "all"] | Neighbours, size: int, chance: float, seed: int = 0
) -> Callable[[int], Neighbours]:
    """The graph without some of its links, others in every step: each is lost with `chance`.

    Both ends of a link know that it is lost, so that no one waits, and the mean of the ranks stays.
    """
    check("losing_links", "chance", chance, "[0, 1]")
    whole = named_graph(graph, size) if isinstance(graph, str) else graph

    def left(step: int) -> Neighbours:
        random = generator(seed, "links", step)
        found: dict[int, list[int]] = {rank: [] for rank in range(size)}
        for rank in range(size):
            for peer in sorted({peer for peer in whole.get(rank, ()) if peer > rank}):
                if random.random() >= chance:
                    found[rank].append(peer)
                    found[peer].append(rank)
        return found

    return left
