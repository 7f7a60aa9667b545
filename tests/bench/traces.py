"""What a step of a model with experts, and one of recommendations, exchange: generators.

A step is a list of operations in the order in which a rank begins them.  The program waits for some before
it continues, because they are what it computes with next; it waits for the others, gradients, when the step ends.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

__all__ = ["TRACES", "Operation"]


class Operation(NamedTuple):
    """bytes: of the larger of input and output.  is_awaited: before the next one begins."""

    kind: str
    bytes: int
    is_awaited: bool


def experts(chance: random.Random) -> list[Operation]:
    """Mixture of experts: 4 layers of width 512 in float32.  Tokens go to their experts and back, in both
    passes; how many is told before.  Behind them come the gradients of what all ranks have in common: norms,
    the gate, and the four matrices of attention, three of them as one.

    Batches differ in length: a rank has 64 to 512 tokens.
    """
    layers, row = 4, 512 * 4
    tokens = [chance.choice((64, 128, 256, 512)) * row for _ in range(layers)]
    shared = [2 * row, 4 * row, 512 * row, 3 * 512 * row]
    step = []
    for each in tokens:
        step += [Operation("allgather", 1 << 10, True)]
        step += [Operation("alltoall", each, True)] * 2
    for each in reversed(tokens):
        step += [Operation("alltoall", each, True)] * 2
        step += [Operation("allreduce", size, False) for size in shared]
    return step


def recommendations(chance: random.Random) -> list[Operation]:
    """DLRM (Naumov et al., 2019) with the layers of MLPerf's: 26 tables of width 128 lie on other ranks, whose
    rows come and, as gradients, go back; between and behind them the gradients of two perceptrons,
    479-1024-1024-512-256-1 and 13-512-256-128.

    A rank has 16 to 128 samples.
    """
    rows = chance.choice((16, 32, 64, 128)) * 26 * 128 * 4
    top, bottom = (479, 1024, 1024, 512, 256, 1), (13, 512, 256, 128)

    def gradients(widths: tuple[int, ...]) -> list[Operation]:
        layers = list(pairwise(widths))
        return [Operation("allreduce", 4 * (n + 1) * m, False) for n, m in reversed(layers)]

    return [Operation("alltoall", rows, True), *gradients(top), Operation("alltoall", rows, True), *gradients(bottom)]


TRACES: dict[str, Callable[[random.Random], list[Operation]]] = {"moe": experts, "dlrm": recommendations}
