"""Tensors that lie on the ranks in parts."""

from __future__ import annotations

from typing import Any

import numpy as np

from rabit.checkpoint import Part
from rabit.engine.engine import Engine
from rabit.engine.process_set import ProcessSet
from rabit.errors import InvalidArgument
from rabit.ops.collectives import WAITED, allgather
from rabit.ops.operations import Operations

__all__ = ["joined"]


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
    calls = calls or WAITED
    where = np.array([[part.start, len(part.value)]], np.int64)
    places = allgather(where, f"{label}.where", process_set, engine=engine)
    pieces = calls.gathered.run(part.value, f"{label}.values", process_set, engine, (0, ""))
    if len(pieces) != part.length:
        raise InvalidArgument(
            f"load_state_dict: the ranks have {len(pieces)} of the {part.length} elements of {what}. "
            "Load on every rank what Checkpoint.restore gave it."
        )
    whole = calls.gathered.adapter.like(pieces)
    begin = 0
    for start, length in places.tolist():
        whole[start : start + length] = pieces[begin : begin + length]
        begin += length
    return whole
