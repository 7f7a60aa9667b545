"""Tensors that lie on the ranks in parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rabit.checkpoint import Part
from rabit.engine.engine import Engine
from rabit.engine.process_set import ProcessSet
from rabit.errors import InvalidArgument
from rabit.ops.collectives import WAITED, allgather
from rabit.ops.operations import Operations

__all__ = ["assembled", "joined"]


def joined(
    calls: Operations[Any] | None,
    label: str,
    what: str,
    part: Part,
    process_set: ProcessSet,
    engine: Engine | None = None,
) -> Any:
    """All elements of the 1-D tensor of which this rank has `part`: a new tensor of the type of `part.value`.

    calls: operations, on such tensors, that wait; None: on NumPy arrays.  label: of the exchange; what: the tensor, for
    the error.
    Blocks.  Raises InvalidArgument if the ranks do not have all elements.
    """
    places = [(part.start, len(part.value))]
    return assembled(
        calls, label, what, places, part.value, part.length, process_set, engine
    )


def assembled(
    calls: Operations[Any] | None,
    label: str,
    what: str,
    places: Sequence[tuple[int, int]],
    values: Any,
    length: int,
    process_set: ProcessSet,
    engine: Engine | None = None,
) -> Any:
    """All `length` elements of a 1-D tensor of which each rank has some intervals, or nothing.

    places: (start, length) of each interval; values: their elements, one interval after the other. Intervals may
    overlap where their elements are equal.  The rest is as in `joined`.
    """
    calls = calls or WAITED
    where = np.array(places, np.int64).reshape(-1, 2)
    intervals = allgather(where, f"{label}.where", process_set, engine=engine).tolist()
    pieces = calls.gathered.run(values, f"{label}.values", process_set, engine, (0, ""))
    missing = length - _covered(intervals)
    if missing:
        raise InvalidArgument(
            f"{missing} of the {length} elements of {what} are on no rank. Load on every rank what Checkpoint.restore "
            "gave it; in an elastic job, ask for replicas=1, which keeps a copy of each rank's part on another host."
        )
    whole = calls.gathered.adapter.like(pieces[:length])  # Where intervals overlap there are more.
    begin = 0
    for start, count in intervals:
        whole[start : start + count] = pieces[begin : begin + count]
        begin += count
    return whole


def _covered(intervals: Sequence[list[int]]) -> int:
    """How many elements are in at least one of the intervals."""
    covered = end = 0
    for start, count in sorted(intervals):
        covered += max(0, start + count - max(start, end))
        end = max(end, start + count)
    return covered
