"""Sparse gradients: the touched rows of every rank, gathered and added up."""

from __future__ import annotations

from typing import Any

import torch

import rabit
from rabit import InvalidArgument, Kind, ProcessSet, ReduceOp, global_process_set
from rabit_torch.ops.arguments import awaited
from rabit_torch.ops.collected import allgather_async
from rabit_torch.ops.handles import JoinedHandle, TorchHandle
from rabit_torch.results import tensor_from
from rabit_torch.tensors import view


def allreduce_sparse(
    tensor: torch.Tensor, name: str, op: ReduceOp, process_set: ProcessSet = global_process_set
) -> Any:
    """Starts the reduction of a sparse COO tensor; `wait()` gives the coalesced sparse result.

    Two allgathers carry indices and values; ranks may touch different rows, or none.
    op: Average or Sum.
    """
    parts = [f"{name}.indices", f"{name}.values"]
    with (
        awaited(Kind.ALLGATHER, parts[0], process_set),
        awaited(Kind.ALLGATHER, parts[1], process_set),
    ):
        if op not in (ReduceOp.AVERAGE, ReduceOp.SUM):
            raise InvalidArgument(
                f"sparse allreduce '{name}': op is {op}; only Average and Sum add up rows that some "
                "ranks have not touched"
            )
        coalesced = tensor.coalesce()
        places, rows = coalesced.indices().t().contiguous(), coalesced.values()
    indices = allgather_async(places, parts[0], process_set)
    values = allgather_async(rows, parts[1], process_set)
    shape, size = tensor.shape, process_set.size()

    def finish() -> torch.Tensor:
        return _added_up(
            indices.wait(), values.wait(), shape, size if op == ReduceOp.AVERAGE else 1
        )

    both = rabit.GroupHandle([*indices.engine_handles, *values.engine_handles])
    return JoinedHandle((both,), finish)


def _added_up(
    places: torch.Tensor, rows: torch.Tensor, shape: torch.Size, divisor: int
) -> torch.Tensor:
    """The rows of all ranks, added up and divided; integers truncate toward zero, as dense ones."""
    total = torch.sparse_coo_tensor(places.t(), rows, shape, check_invariants=False).coalesce()
    if divisor == 1:
        return total
    mode = None if rows.is_floating_point() or rows.is_complex() else "trunc"
    mean = torch.div(total.values(), divisor, rounding_mode=mode)
    return torch.sparse_coo_tensor(
        total.indices(), mean, shape, check_invariants=False, is_coalesced=True
    )


def allreduce_sparse_on(
    lines: Any, engine: rabit.Engine, tensor: torch.Tensor, op: ReduceOp
) -> tuple[list[rabit.Handle], Any]:
    """Starts the sum of a sparse tensor over the ranks of `engine`: (handles, result)."""
    if op not in (ReduceOp.AVERAGE, ReduceOp.SUM):
        raise InvalidArgument(f"allreduce of a sparse tensor with {op}; use SUM or AVG")
    coalesced = tensor.detach().coalesce()
    indices = coalesced.indices().t().contiguous()
    values = coalesced.values().contiguous()

    def gather(part: str, rows: torch.Tensor) -> rabit.Handle:
        def make(name: str) -> rabit.Request:
            return rabit.Request(Kind.ALLGATHER, name, view(rows, name))

        handle: rabit.Handle = lines.submit(("sparse", part, rows.dtype), None, make, None, rows)
        return handle

    handles = [gather("indices", indices), gather("values", values)]

    def result() -> torch.Tensor:
        places = tensor_from(handles[0], indices)
        rows = tensor_from(handles[1], values)
        divisor = engine.size if op == ReduceOp.AVERAGE else 1
        return _added_up(places, rows, tensor.shape, divisor)

    return handles, result


def sparse_allreduce_async(
    tensor: torch.Tensor,
    name: str,
    op: ReduceOp = rabit.Average,
    process_set: ProcessSet = global_process_set,
) -> TorchHandle:
    """Starts the allreduce of a sparse COO tensor; the handle's result is sparse.  Does not block."""
    handle: TorchHandle = allreduce_sparse(tensor, name, op, process_set)
    return handle
