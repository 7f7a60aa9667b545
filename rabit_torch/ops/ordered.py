"""Ordered operations on torch tensors: blocking, without negotiation, in one order everywhere.

Every rank of the process set makes the same ordered calls, in the same order, with the same shapes,
dtypes and arguments; in return a call takes about as long as one of an MPI library.  Calls that differ
end in Mismatch, or in TimedOut after `timeout` seconds, and either ends the engine.

Tensors are dense, contiguous and in CPU memory: Unsupported or InvalidArgument otherwise, before
anything is sent.  What is written is returned, and no result carries a gradient.
"""

from __future__ import annotations

from typing import Any

import torch

import rabit
from rabit import Average, InvalidArgument, ProcessSet, ReduceOp, global_process_set
from rabit_torch.ops.arguments import scatter_op
from rabit_torch.tensors import check, is_row_major, view

__all__ = [
    "ordered_allgather_into",
    "ordered_allreduce_",
    "ordered_alltoall_into",
    "ordered_barrier",
    "ordered_broadcast_",
    "ordered_reducescatter_into",
]

_TIMEOUT = 60.0


def _memory(tensor: Any, what: str) -> rabit.TensorView:
    tensor = check(tensor, what).detach()
    if not is_row_major(tensor):
        raise InvalidArgument(
            f"{what} on rank {rabit.rank()}: the tensor of shape {tuple(tensor.shape)} has strides "
            f"{tensor.stride()}{' and is negated by a mark' if tensor.is_neg() else ''}, and an ordered call works on "
            "contiguous memory. Call .resolve_neg().contiguous() first."
        )
    return view(tensor, what)


def ordered_allreduce_(
    tensor: torch.Tensor,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    *,
    timeout: float = _TIMEOUT,
) -> torch.Tensor:
    """Combines `tensor` of every rank element by element, in place, and returns it.  Blocks.

    tensor: same shape and dtype on all ranks.  op: any but Adasum.  timeout: seconds.
    Raises Mismatch or TimedOut where calls of the ranks differ, PeerLost if a rank died.
    """
    what = "ordered allreduce"
    rabit.ordered_allreduce_(
        _memory(tensor, what), scatter_op(op, what), process_set, timeout=timeout
    )
    return tensor


def ordered_broadcast_(
    tensor: torch.Tensor,
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    *,
    timeout: float = _TIMEOUT,
) -> torch.Tensor:
    """Gives `tensor` the values that it has on global rank `root_rank`, and returns it.  Blocks.

    tensor: same shape and dtype on all ranks.  timeout: seconds.
    Raises Mismatch or TimedOut where calls of the ranks differ, PeerLost if a rank died.
    """
    memory = _memory(tensor, "ordered broadcast")
    rabit.ordered_broadcast_(memory, root_rank, process_set, timeout=timeout)
    return tensor


def ordered_allgather_into(
    output: torch.Tensor,
    tensor: torch.Tensor,
    process_set: ProcessSet = global_process_set,
    *,
    timeout: float = _TIMEOUT,
) -> torch.Tensor:
    """Writes `tensor` of every rank into `output`, in rank order, and returns `output`.  Blocks.

    tensor: as many elements on every rank; output: that many for each rank, of the same dtype.
    timeout: seconds.
    Raises Mismatch or TimedOut where calls of the ranks differ, PeerLost if a rank died.
    """
    what = "ordered allgather"
    rabit.ordered_allgather_into(
        _memory(output, what), _memory(tensor, what), process_set, timeout=timeout
    )
    return output


def ordered_reducescatter_into(
    output: torch.Tensor,
    tensor: torch.Tensor,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    *,
    timeout: float = _TIMEOUT,
) -> torch.Tensor:
    """Combines `tensor` of every rank; writes this rank's part into `output`, which is returned.

    tensor: a part of as many elements as `output` for each rank, in rank order; not changed.
    Both have one dtype.  op: any but Adasum.  timeout: seconds.  Blocks.
    Raises Mismatch or TimedOut where calls of the ranks differ, PeerLost if a rank died.
    """
    what = "ordered reducescatter"
    rabit.ordered_reducescatter_into(
        _memory(output, what),
        _memory(tensor, what),
        scatter_op(op, what),
        process_set,
        timeout=timeout,
    )
    return output


def ordered_alltoall_into(
    output: torch.Tensor,
    tensor: torch.Tensor,
    process_set: ProcessSet = global_process_set,
    *,
    timeout: float = _TIMEOUT,
) -> torch.Tensor:
    """Sends part i of `tensor` to the i-th rank; `output` gets a part from each, in rank order.

    tensor, output: as many elements of one dtype; the parts are of equal size.  Returns `output`.
    timeout: seconds.  Blocks.
    Raises Mismatch or TimedOut where calls of the ranks differ, PeerLost if a rank died.
    """
    what = "ordered alltoall"
    rabit.ordered_alltoall_into(
        _memory(output, what), _memory(tensor, what), process_set, timeout=timeout
    )
    return output


def ordered_barrier(
    process_set: ProcessSet = global_process_set, *, timeout: float = _TIMEOUT
) -> None:
    """Returns when every rank of the process set has called it.  timeout: seconds."""
    rabit.ordered_barrier(process_set, timeout=timeout)
