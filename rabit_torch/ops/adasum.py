"""Adasum: gradients that agree are averaged, gradients that are orthogonal are added.

Two gradients a and b combine to (1 - a·b / 2|a|²) a + (1 - a·b / 2|b|²) b; more than two combine
along a binary tree over the ranks, of any number.
Source: Maleki et al., "Scaling Distributed Training with Adaptive Summation", 2021.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import torch

from rabit import InvalidArgument, ProcessSet, Sum, Unsupported, default_engine
from rabit.framework import Task, driver_of, finished
from rabit_torch.ops.handles import TorchHandle

__all__ = ["Adasum", "AdasumOp", "Rounds", "check_floats", "combine", "start_adasum"]


class AdasumOp(IntEnum):
    """Not an operation of the engine: it needs scalar products between the steps."""

    ADASUM = 2

    def __str__(self) -> str:
        return "adasum"


Adasum = AdasumOp.ADASUM


class Rounds(NamedTuple):
    """The collectives that an adaptive sum is made of, which stand above it.

    alltoall_named: under a name that is taken as it is.
    """

    allreduce_in_place: Callable[..., Any]  # Each returns a TorchHandle.
    allgather: Callable[..., Any]
    alltoall_named: Callable[..., TorchHandle]


def combine(a: torch.Tensor, b: torch.Tensor, products: torch.Tensor) -> torch.Tensor:
    """The adaptive sum of two vectors; products: [a·b, a·a, b·b] over their whole length."""
    dot, aa, bb = products.tolist()
    of_a = 1.0 - dot / (2.0 * aa) if aa > 0.0 else 1.0
    of_b = 1.0 - dot / (2.0 * bb) if bb > 0.0 else 1.0
    return a * of_a + b * of_b


def start_adasum(
    rounds: Rounds,
    tensors: Sequence[torch.Tensor],
    name: str,
    names: Sequence[str],
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
) -> Task:
    """Starts the adaptive sum of every tensor by itself; `wait()` gives the list of new tensors.

    Each rank combines one slice of all vectors: an alltoall brings the slices together, the scalar
    products of each level of the tree are summed over the ranks, and an allgather spreads the
    result.  A rank thus sends twice its data, whatever the number of ranks.

    name: of the whole.  names: of the tensors, which the alltoalls have: those of an ordinary allreduce, so that
    ranks that disagree about the operation meet, and learn it.
    """
    driver = driver_of(default_engine())
    task = driver.spawn(
        lambda _: _sum(rounds, tensors, name, names, prescale, postscale, process_set), name
    )
    if task.is_done:
        task.outcome()
    return task


async def _sum(
    rounds: Rounds,
    tensors: Sequence[torch.Tensor],
    name: str,
    names: Sequence[str],
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
) -> list[torch.Tensor]:
    size = process_set.size()
    sent, widths = [], []
    for each, tensor in zip(names, tensors, strict=True):
        flat = tensor.detach().reshape(-1) * prescale
        cuts = [flat.numel() * rank // size for rank in range(size + 1)]
        splits = [stop - start for start, stop in itertools.pairwise(cuts)]
        widths.append(splits[process_set.rank()])
        sent.append(rounds.alltoall_named(flat, splits, each, process_set))
    slices = await _all(sent)
    parts = [
        list(rows.to(_accumulator(rows.dtype)).reshape(size, width).unbind(0))
        for rows, width in zip(slices, widths, strict=True)
    ]
    totals = await _reduce_tree(rounds, parts, name, process_set)
    spread = [
        rounds.allgather((total * postscale).to(t.dtype), f"{name}.{index}.total", process_set)
        for index, (total, t) in enumerate(zip(totals, tensors, strict=True))
    ]
    wholes = await _all(spread)
    return [whole.reshape(tensor.shape) for whole, tensor in zip(wholes, tensors, strict=True)]


async def _all(handles: Sequence[TorchHandle]) -> list[Any]:
    """The results of `handles`, when all have finished."""
    await finished([each for handle in handles for each in handle.engine_handles])
    return [handle.wait() for handle in handles]


def _accumulator(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype.itemsize < 4 else dtype


async def _reduce_tree(
    rounds: Rounds, parts: list[list[torch.Tensor]], name: str, process_set: ProcessSet
) -> list[torch.Tensor]:
    """Combines the slices of all ranks, neighbours first, level by level."""
    level = 0
    while len(parts[0]) > 1:
        pairs = len(parts[0]) // 2
        products = parts[0][0].new_zeros(len(parts), pairs, 3, dtype=torch.float64)
        for row, vectors in enumerate(parts):
            for pair in range(pairs):
                a, b = vectors[2 * pair].double(), vectors[2 * pair + 1].double()
                products[row, pair, 0] = a.dot(b)
                products[row, pair, 1] = a.dot(a)
                products[row, pair, 2] = b.dot(b)
        total = f"{name}.products.{level}"
        summed = rounds.allreduce_in_place(products, None, total, Sum, process_set=process_set)
        await _all([summed])
        parts = [
            [combine(v[2 * pair], v[2 * pair + 1], products[row, pair]) for pair in range(pairs)]
            + v[2 * pairs :]
            for row, v in enumerate(parts)
        ]
        level += 1
    return [vectors[0] for vectors in parts]


def check_floats(tensors: Sequence[torch.Tensor], names: Sequence[str]) -> None:
    """Raises Unsupported where an adaptive sum is not defined."""
    for tensor, name in zip(tensors, names, strict=True):
        if not tensor.is_floating_point():
            raise Unsupported(
                f"adasum '{name}': {tensor.dtype} is not a floating type, which adasum needs; use op=Sum for integers"
            )


def refuse(what: str) -> InvalidArgument:
    """The error for an operation that has no adaptive form."""
    return InvalidArgument(f"{what}: op Adasum exists for allreduce alone; use Average or Sum")
