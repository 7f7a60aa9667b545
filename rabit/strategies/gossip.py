"""Gossip: ranks average with their neighbours in a graph."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from rabit.errors import InvalidArgument
from rabit.training.strategy import Array, Ranks, Slot, Strategy

__all__ = ["Gossip"]

Graph = Literal["ring"] | Mapping[int, Sequence[int]]


class Gossip(Strategy):
    """x_i = Σ_j P_ij x_j over rank i and its neighbours, `rounds` times after every `every` updates.

    graph: "ring", or the neighbours of every rank; whoever names a rank is named by it.
    P_ij = 1/(1 + max(degree_i, degree_j)) for neighbours, the rest stays at home, so that the mean of
    the ranks is conserved and their distance from it shrinks by P's second largest eigenvalue a round.
    State: none beside the parameters, which differ between ranks.
    Source: Xiao and Boyd, "Fast Linear Iterations for Distributed Averaging", 2004 (Metropolis weights);
    Lian et al., "Can Decentralized Algorithms Outperform Centralized Algorithms?", 2017.
    """

    uses_step = True

    def __init__(self, graph: Graph = "ring", rounds: int = 1, every: int = 1) -> None:
        if rounds < 1 or every < 1 or (isinstance(graph, str) and graph != "ring"):
            raise InvalidArgument(
                f"Gossip(graph={graph!r}, rounds={rounds}, every={every}): it takes 'ring' or the "
                "neighbours of every rank, rounds >= 1 and every >= 1."
            )
        self.graph, self.rounds, self.every = graph, rounds, every
        self._slots: Sequence[Slot] = ()

    def plan(self, slots: Sequence[Slot]) -> None:
        self._slots = slots

    async def after_step(self, ranks: Ranks) -> None:
        if ranks.step % self.every:
            return
        weights = metropolis_weights(self.graph, ranks.size)[ranks.rank]
        moves = [
            ranks.start(functools.partial(self._move, slot, weights), name=f"gossip.{slot.name}")
            for slot in self._slots
        ]
        for move in moves:
            await move

    async def _move(self, slot: Slot, weights: Array, ranks: Ranks) -> None:
        peers = [int(peer) for peer in np.flatnonzero(weights) if peer != ranks.rank]
        value, kind = slot.value, slot.dtype.type
        for _ in range(self.rounds):
            found = await ranks.swap(value, peers)
            value = kind(weights[ranks.rank]) * value
            for peer, other in zip(peers, found, strict=True):
                value = value + kind(weights[peer]) * other
        slot.value = value


def metropolis_weights(graph: Graph, size: int) -> Array:
    """The matrix P of a graph of `size` ranks; refuses a graph that is none of them."""
    if isinstance(graph, str):
        graph = {rank: [(rank - 1) % size, (rank + 1) % size] for rank in range(size)}
    neighbours = {rank: set(graph.get(rank, ())) - {rank} for rank in range(size)}
    for rank, peers in neighbours.items():
        for peer in peers:
            if not 0 <= peer < size or rank not in neighbours[peer]:
                raise InvalidArgument(
                    f"the graph of Gossip has {peer} as a neighbour of rank {rank}, and not the other way "
                    f"round among {size} ranks. Name both."
                )
    weights = np.zeros((size, size))
    for rank, peers in neighbours.items():
        for peer in peers:
            weights[rank, peer] = 1 / (1 + max(len(peers), len(neighbours[peer])))
        weights[rank, rank] = 1 - weights[rank].sum()
    return weights
