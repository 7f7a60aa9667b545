"""Sparse gradients: the touched rows of every rank, gathered and added up."""

from __future__ import annotations

from typing import Any

import torch

import rabit
from rabit import InvalidArgument, ProcessSet, ReduceOp, global_process_set

from ._handles import TorchHandle
from ._ops import allgather_async


def allreduce_sparse(
    tensor: torch.Tensor, name: str, op: ReduceOp, process_set: ProcessSet = global_process_set
) -> Any:
    """Starts the reduction of a sparse COO tensor; `wait()` gives the coalesced sparse result.

    Two allgathers carry indices and values; ranks may touch different rows, or none.
    op: Average or Sum.
    """
    if op not in (ReduceOp.AVERAGE, ReduceOp.SUM):
        raise InvalidArgument(
            f"sparse allreduce '{name}': op is {op}; only Average and Sum add up rows that some ranks "
            "have not touched"
        )
    coalesced = tensor.coalesce()
    indices = allgather_async(coalesced.indices().t().contiguous(), f"{name}.indices", process_set)
    values = allgather_async(coalesced.values(), f"{name}.values", process_set)
    shape, size = tensor.shape, process_set.size()

    def finish() -> torch.Tensor:
        rows = values.wait()
        if op == ReduceOp.AVERAGE:
            rows = rows / size if rows.is_floating_point() else rows // size
        return torch.sparse_coo_tensor(indices.wait().t(), rows, shape).coalesce()

    return TorchHandle([], finish)


def sparse_allreduce_async(
    tensor: torch.Tensor,
    name: str,
    op: ReduceOp = rabit.Average,
    process_set: ProcessSet = global_process_set,
) -> TorchHandle:
    """Starts the allreduce of a sparse COO tensor; the handle's result is sparse.  Does not block."""
    handle: TorchHandle = allreduce_sparse(tensor, name, op, process_set)
    return handle
