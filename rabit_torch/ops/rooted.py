"""Operations in which one rank differs: reduce, gather, scatter, send and recv on torch tensors.

Arguments that all share:

    tensor       a dense tensor in CPU memory; one that is not contiguous is copied first.
    name         equal on all ranks that take part; None: numbered by the order of the calls, which
                 must then be the same on all of them.
    process_set  who takes part; roots and peers are global ranks all the same.
    priority     larger runs first.

Blocking forms return when the operation has finished on this rank; the `_async` forms return a
handle at once, and their `tensor` must not change until `synchronize(handle)`.  No result carries a
gradient.  Errors: InvalidArgument for a rank that takes no part, for what is no tensor, and for a name
that is in flight; Unsupported for devices, layouts and dtypes that no collective carries; Mismatch
if the ranks disagree about dtype, shape, operation or root; PeerLost if a rank died.
"""

from __future__ import annotations

from typing import Any

import torch

import rabit
from rabit import Average, Kind, ProcessSet, ReduceOp, global_process_set
from rabit.framework import Awaited, message_name
from rabit_torch.ops.arguments import auto_name, checked_splits, group_of, scatter_op
from rabit_torch.ops.handles import JoinedHandle, TorchHandle, waited_for
from rabit_torch.results import tensor_from
from rabit_torch.tensors import check, copy_last, is_row_major, row_major, view

__all__ = [
    "gather",
    "gather_async",
    "recv",
    "recv_async",
    "reduce",
    "reduce_async",
    "scatter",
    "scatter_async",
    "send",
    "send_async",
]


def _source(tensor: Any, name: str | None) -> tuple[torch.Tensor, rabit.TensorView]:
    source = row_major(check(tensor, name))
    return source, view(source, name)


def _result_on(
    rank: int | None,
    started: rabit.Handle,
    like: torch.Tensor,
    shape: tuple[int, ...] | None = None,
) -> TorchHandle:
    """The handle of a new tensor of the type of `like`, on `rank` alone; None is every rank."""

    def finish() -> torch.Tensor | None:
        if rank is not None and rabit.rank() != rank:
            return None
        result = tensor_from(started, like)
        return result if shape is None else result.reshape(shape)

    return JoinedHandle([started], finish)


def reduce_async(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    op: ReduceOp = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    priority: int = 0,
) -> TorchHandle:
    """Like `reduce`, but returns a handle at once."""
    full_name = auto_name(Kind.REDUCE, name, process_set)
    with Awaited(rabit.default_engine(), Kind.REDUCE, full_name, group_of(process_set)):
        source, memory = _source(tensor, full_name)
        resolved = scatter_op(op, full_name)
    started = rabit.reduce_async(
        memory,
        root_rank,
        full_name,
        resolved,
        prescale_factor,
        postscale_factor,
        process_set,
        priority=priority,
    )
    return _result_on(root_rank, started, source, tuple(source.shape))


def reduce(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    op: ReduceOp = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    priority: int = 0,
) -> torch.Tensor | None:
    """Combines `tensor` of every rank element by element, for rank `root_rank` alone.

    tensor: same shape and dtype on all ranks; not changed.
    op: Average (default), Sum, Min, Max, Product, or bitwise on integers and bool; InvalidArgument for
        Adasum.
    Returns a new tensor of the same shape and dtype on the root, None elsewhere.  Blocks.
    Raises Mismatch if shape, dtype or op differ between ranks, PeerLost if a rank died.
    """
    result: torch.Tensor | None = waited_for(
        reduce_async,
        tensor,
        root_rank,
        name,
        op,
        prescale_factor,
        postscale_factor,
        process_set,
        priority=priority,
    )
    return result


def gather_async(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    *,
    priority: int = 0,
) -> TorchHandle:
    """Like `gather`, but returns a handle at once."""
    full_name = auto_name(Kind.GATHER, name, process_set)
    with Awaited(rabit.default_engine(), Kind.GATHER, full_name, group_of(process_set)):
        source, memory = _source(tensor, full_name)
    started = rabit.gather_async(memory, root_rank, full_name, process_set, priority=priority)
    return _result_on(root_rank, started, source)


def gather(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    *,
    priority: int = 0,
) -> torch.Tensor | None:
    """Concatenates `tensor` of every rank along axis 0, in rank order, on rank `root_rank` alone.

    tensor: shape (n_r, *rest); `rest` and dtype equal on all ranks, n_r may differ.  A scalar counts
        as one row.
    Returns a new tensor of shape (sum of n_r, *rest) on the root, None elsewhere.  Blocks.
    Raises Mismatch if dtype or `rest` differ between ranks, PeerLost if a rank died.
    """
    result: torch.Tensor | None = waited_for(
        gather_async, tensor, root_rank, name, process_set, priority=priority
    )
    return result


def scatter_async(
    tensor: torch.Tensor,
    root_rank: int,
    splits: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    *,
    priority: int = 0,
) -> TorchHandle:
    """Like `scatter`, but returns a handle at once."""
    full_name = auto_name(Kind.SCATTER, name, process_set)
    with Awaited(rabit.default_engine(), Kind.SCATTER, full_name, group_of(process_set)):
        source, memory = _source(tensor, full_name)
        rows = checked_splits(splits, full_name)
    started = rabit.scatter_async(
        memory,
        root_rank,
        rows,
        full_name,
        process_set,
        priority=priority,
    )
    return _result_on(None, started, source)


def scatter(
    tensor: torch.Tensor,
    root_rank: int,
    splits: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    *,
    priority: int = 0,
) -> torch.Tensor:
    """This rank's rows of the tensor that rank `root_rank` has, a new tensor.

    tensor: shape (n, *rest) on the root.  Elsewhere only dtype and `rest` count, so
        torch.empty(0, *rest, dtype=…) will do.
    splits: on the root, the rows for each rank, in rank order (integers, sum = n); None: n / size
        each, InvalidArgument where that is no whole number.
    Blocks.  Raises Mismatch if dtype or `rest` differ between ranks, PeerLost if a rank died.
    """
    result: torch.Tensor = waited_for(
        scatter_async, tensor, root_rank, splits, name, process_set, priority=priority
    )
    return result


def send_async(tensor: torch.Tensor, dst: int, name: str | None = None) -> TorchHandle:
    """Like `send`, but returns a handle at once; `tensor` must not change until it has finished."""
    engine = rabit.default_engine()
    full_name = name or message_name(engine, engine.rank, dst)
    with Awaited(engine, Kind.SEND, full_name, 0, root=dst):
        _, memory = _source(tensor, full_name)
    return JoinedHandle([rabit.send_async(memory, dst, full_name)], lambda: None)


def send(tensor: torch.Tensor, dst: int, name: str | None = None) -> None:
    """Sends `tensor` to global rank `dst`, which must call `recv` with the same name.

    tensor: any shape; the receiver's has the same shape and dtype.
    name: None numbers the messages from this rank to `dst` in the order of the calls.  `rabit.recv`
        with the name receives as well.
    Returns when `tensor` may be changed.  Blocks.  Raises InvalidArgument if `dst` is this rank.
    """
    send_async(tensor, dst, name).wait()


def recv_async(tensor: torch.Tensor, src: int, name: str | None = None) -> TorchHandle:
    """Like `recv`, but returns a handle at once; `tensor` is written until it has finished."""
    engine = rabit.default_engine()
    full_name = name or message_name(engine, src, engine.rank)
    with Awaited(engine, Kind.RECV, full_name, 0, root=src):
        target = check(tensor, full_name, is_written=True).detach()
        memory = target if is_row_major(target) else target.new_empty(target.shape)
        received = view(memory, full_name)
    started = rabit.recv_async(received, src, full_name)

    def finish() -> torch.Tensor:
        if memory is not target:
            copy_last(target, memory)
        return tensor

    return JoinedHandle([started], finish)


def recv(tensor: torch.Tensor, src: int, name: str | None = None) -> torch.Tensor:
    """Receives into `tensor` what global rank `src` sends, and returns it.

    tensor: of the shape and dtype that is sent; need not be contiguous.
    name: None numbers the messages from `src` to this rank in the order of the calls.
    Blocks.  Raises InvalidArgument if `src` is this rank.
    """
    result: torch.Tensor = recv_async(tensor, src, name).wait()
    return result
