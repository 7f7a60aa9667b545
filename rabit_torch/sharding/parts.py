"""Tensors that lie on the ranks in parts, put together."""

from __future__ import annotations

import torch

from rabit import InvalidArgument, ProcessSet
from rabit.checkpoint import Part
from rabit_torch.ops.collected import allgather_async

__all__ = ["joined"]


def joined(label: str, what: str, part: Part, process_set: ProcessSet) -> torch.Tensor:
    """All elements of a tensor, 1-D. label: of the exchange; what: the tensor, for the error.

    Blocks until every rank has called it. Raises InvalidArgument if elements are missing.
    """
    where = torch.tensor([[part.start, len(part.value)]])
    starts = allgather_async(where, name=f"{label}.where", process_set=process_set).wait()
    pieces = allgather_async(part.value, name=f"{label}.values", process_set=process_set).wait()
    if int(starts[:, 1].sum()) != part.length:
        raise InvalidArgument(
            f"load_state_dict: the ranks have {int(starts[:, 1].sum())} of the {part.length} elements of {what}. Load "
            "on every rank what Checkpoint.restore gave it"
        )
    whole: torch.Tensor = pieces.new_empty(part.length)
    begin = 0
    for start, length in starts.tolist():
        whole[start : start + length] = pieces[begin : begin + length]
        begin += length
    return whole
