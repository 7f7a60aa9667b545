"""Decentralized training: ranks average their parameters with neighbours, not with all."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from rabit.errors import InvalidArgument
from rabit.training.state import leaf
from rabit.training.strategy import Array, Ranks, Slot, Strategy
from rabit.training.tasks import Task

from .codecs import Codec, randomness
from .gossip import graph_weights, swap_with_neighbours
from .minmax import MinMax8
from .ranges import check_choice, in_range

__all__ = ["Decentralized", "LowPrecisionRing"]


class Decentralized(Strategy):
    """x_i = mean of x_j over rank i and its peers, before each update; gradients stay where they are.

    peers: "all"; or "shift-one": one peer at a time, of the other half of the ranks, a further one each
    time, which takes an even number of ranks.  every: steps from one exchange to the next.
    The exchange starts after an update and travels during the next backward pass; what the program changes
    in parameters meanwhile is added to the mean.
    A parameter that is frozen takes the last mean that was on its way, and is left alone.
    State: none besides the parameters, which differ between ranks.
    Source: Lian et al., "Can Decentralized Algorithms Outperform Centralized Algorithms?", 2017; Gan et
    al., "BAGUA", 2021.
    """

    uses_step = True

    def __init__(self, peers: Literal["all", "shift-one"] = "all", every: int = 1) -> None:
        self.peers, self.every = peers, every
        in_range(self, every="1..")
        check_choice("Decentralized", "peers", peers, ("all", "shift-one"))
        if peers == "shift-one":
            self.needs_of_ranks = "peers='shift-one' takes an even number of ranks"
        self._slots: Sequence[Slot] = ()
        self._moves: list[tuple[Slot, Array, Task]] = []  # and what each has sent

    def plan(self, slots: Sequence[Slot]) -> None:
        self._slots = slots

    async def after_step(self, ranks: Ranks) -> None:
        if ranks.size > 1 and ranks.step % self.every == 0:
            self._moves = [(slot, *self._start(slot, ranks)) for slot in self._slots if not slot.is_frozen]

    async def before_step(self, ranks: Ranks) -> None:
        for slot, sent, move in self._moves:
            mean, now = await move, slot.value
            # A program may have clamped, loaded or broadcast parameters since they were sent.
            slot.value = mean if np.array_equal(now, sent) else now + (mean - sent)
        self._moves = []

    async def finish(self, ranks: Ranks) -> None:
        await self.before_step(ranks)

    def _start(self, slot: Slot, ranks: Ranks) -> tuple[Array, Task]:
        turn, value = ranks.step // self.every - 1, ranks.empty(slot.shape, slot.dtype)
        np.copyto(value, slot.value)

        async def body(ranks: Ranks) -> Array:
            if self.peers == "all":
                return await ranks.mean(value)
            (other,) = await ranks.swap(value, [_shift_one(ranks, turn)])
            mean: Array = np.add(other, value, out=other)
            mean *= value.dtype.type(0.5)
            return mean

        return value, ranks.start(body, name=f"peers.{slot.name}")


def _shift_one(ranks: Ranks, turn: int) -> int:
    if ranks.size % 2:
        raise InvalidArgument(
            f"peers='shift-one' pairs the ranks, and there are {ranks.size}. Use an even number, or "
            "peers='all'."
        )
    half, rank = ranks.size // 2, ranks.rank
    return (turn + rank) % half + half if rank < half else (rank - half - turn) % half


@dataclass
class RingState:
    """What the neighbours and all others know of left, right and this rank's parameters."""

    left: Array = leaf(scope="local", elastic="none")
    right: Array = leaf(scope="local", elastic="none")
    own: Array = leaf(scope="local", elastic="none")


class LowPrecisionRing(Strategy):
    """y = x + l/3 + r/3 - 5/3·z;  z = z + D(C(y));  x = z;  l and r follow from what neighbours send.

    Ranks in a ring send the codec's view of how far they have moved, after an update.
    every: updates from one exchange to the next.  A parameter that is frozen is left alone.
    State: l, r and z, local; three times the parameter.  All ranks start from the same parameters.
    Source: Tang et al., "Communication Compression for Decentralized Training", 2018 (difference
    compression); Gan et al., "BAGUA", 2021.
    """

    uses_step = True
    needs_of_ranks = "each rank knows the parameters of its two neighbours"

    def __init__(self, codec: Codec | None = None, seed: int = 0, every: int = 1) -> None:
        self.codec, self.seed, self.every = codec or MinMax8(), seed, every
        in_range(self, seed="0..", every="1..")
        self._slots: Sequence[Slot] = ()

    def plan(self, slots: Sequence[Slot]) -> None:
        self._slots = slots
        for slot in slots:
            if slot.state is None:
                value = slot.value.copy()
                slot.state = RingState(value, value, value)

    async def after_step(self, ranks: Ranks) -> None:
        if ranks.step % self.every:
            return
        moves = [
            ranks.start(functools.partial(self._move, slot), name=f"ring.{slot.name}")
            for slot in self._slots
            if not slot.is_frozen
        ]
        for move in moves:
            await move

    async def _move(self, slot: Slot, ranks: Ranks) -> None:
        state, shape = slot.state, slot.shape
        kind = slot.dtype.type
        moved = np.add(state.left, state.right, out=ranks.empty(shape, slot.dtype))
        moved *= kind(1 / 3)
        moved += slot.value
        moved -= np.multiply(state.own, kind(5 / 3), out=ranks.empty(shape, slot.dtype))
        flat = moved.reshape(-1)
        mine = self.codec.encode(flat, randomness(self.seed, ranks))
        left, right = (ranks.rank - 1) % ranks.size, (ranks.rank + 1) % ranks.size
        ring = graph_weights("ring", ranks.size, ranks.step)
        codes = {ranks.rank: mine, **await swap_with_neighbours(mine, ring, ranks)}

        def after(before: Array, rank: int) -> Array:
            known = self.codec.decode(codes[rank], flat).reshape(shape)
            found: Array = np.add(before, known, out=ranks.empty(shape, slot.dtype))
            return found

        state.left, state.right = after(state.left, left), after(state.right, right)
        state.own = after(state.own, ranks.rank)
        slot.value = state.own
