"""The synchronous collectives, differentiable where the mathematics is.

A backward pass calls these again where it makes a graph of its own (create_graph=True), so that gradients of
gradients are right, and the plain forms else.  Every rank keeps the whole graph, a part that is zero too: a collective
that one rank leaves out of its backward pass is one that the others wait for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

import rabit
from rabit import Average, Kind, ProcessSet, ReduceOp, Sum, global_process_set
from rabit_torch.compression import IDENTITY, Compression, by_hand, split
from rabit_torch.ops import collected, collectives
from rabit_torch.ops.arguments import awaited, reduce_op, scatter_op
from rabit_torch.ops.handles import waited_for


def _apply(function: Any, *arguments: Any) -> Any:
    return function.apply(*arguments)


def _needs_gradient(tensor: Any) -> bool:
    # What is no tensor takes the way on which it is refused.
    return torch.is_grad_enabled() and getattr(tensor, "requires_grad", False)


def _is_transposed() -> bool:
    """True where gradients are the transpose of the operation rather than Horovod's.

    Horovod averages in the backward pass of allgather and broadcast, as if the loss were the mean of
    the losses of all ranks.
    """
    return rabit.default_engine().config.gradients == "transpose"


def _refuse_gradient(kind: str, op: ReduceOp) -> None:
    if op not in (ReduceOp.SUM, ReduceOp.AVERAGE):
        raise RuntimeError(
            f"{kind} with op {op} has no gradient; use Sum or Average, or detach() the input"
        )


class _Allreduce(torch.autograd.Function):
    # torch looks at every argument by itself, so all but the tensors come as one.
    @staticmethod
    def forward(
        context: Any,
        call: tuple[str | None, ReduceOp, tuple[float, float], ProcessSet, Any],
        is_grouped: bool,
        *tensors: torch.Tensor,
    ) -> Any:
        context.call = call
        if not is_grouped:
            return collectives.allreduce_into_new(tensors[0], *call)
        return tuple(waited_for(collectives.start_group, False, tensors, *call))

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> Any:
        # The reduction is linear for Sum and Average, and so is its transpose: itself.
        _, op, (prescale, postscale), process_set, _ = context.call
        _refuse_gradient("allreduce", op)
        return (None, None, *_reduced(gradients, op, (postscale, prescale), process_set))


def _reduced(
    gradients: Sequence[torch.Tensor],
    op: ReduceOp,
    factors: tuple[float, float],
    process_set: ProcessSet,
) -> Sequence[torch.Tensor]:
    """The allreduces of gradients in a backward pass."""
    call = (None, op, factors, process_set, rabit.Compression.none)
    reduced: Sequence[torch.Tensor]
    if torch.is_grad_enabled():
        reduced = _apply(_Allreduce, call, True, *gradients)
    else:
        reduced = collectives.start_group(False, gradients, *call).wait()
    return reduced


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Returns the reduction of `tensor` over all ranks, a new tensor of the same shape and dtype.

    op: Average (default), Sum, Min, Max, Product, or bitwise on integers and bool; Average of
    integers truncates toward zero.  An average is divided before it is rounded to the tensor's type: of
    float16, 60000 and 60000 give 60000.
    Differentiable for Sum and Average.  Blocks until every rank of `process_set` has called it with
    the same name.
    Raises Mismatch if shape, dtype or op differ between ranks, PeerLost if a rank died.
    """
    factors = (prescale_factor, postscale_factor)
    if isinstance(compression, rabit.CompressionCodec) and not _needs_gradient(tensor):
        call = (tensor, name, op, factors, process_set, compression, average)
        return collectives.allreduce_into_new(*call)
    with awaited(Kind.ALLREDUCE, name, process_set):
        resolved = reduce_op(op, average)
        codec, compressor = split(compression)
        wire, undo = (tensor, None) if compressor is IDENTITY else compressor.compress(tensor)
    result = _apply(_Allreduce, (name, resolved, factors, process_set, codec), False, wire)
    return result if compressor is IDENTITY else compressor.decompress(result, undo)


def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Returns the reductions of several tensors, which travel together.  See `allreduce`."""
    tensors = list(tensors)
    with awaited(Kind.ALLREDUCE, name, process_set, len(tensors)):
        codec, compressor = split(compression)
        pairs = [compressor.compress(tensor) for tensor in tensors]
        factors = (prescale_factor, postscale_factor)
        call = (name, reduce_op(op, average), factors, process_set, codec)
    results = _apply(_Allreduce, call, True, *[wire for wire, _ in pairs])
    return [compressor.decompress(r, undo) for r, (_, undo) in zip(results, pairs, strict=True)]


class _Allgather(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any,
        name: str | None,
        process_set: ProcessSet,
        is_grouped: bool,
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        if is_grouped:
            results = waited_for(collected.grouped_allgather_async, tensors, name, process_set)
        else:
            results = (waited_for(collected.allgather_async, tensors[0], name, process_set),)
        context.process_set = process_set
        context.rows = [tensor.shape[0] if tensor.dim() else 1 for tensor in tensors]
        context.shapes = [tensor.shape for tensor in tensors]
        return tuple(results)

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> Any:
        process_set, rows = context.process_set, torch.tensor(context.rows)
        all_rows = collected.allgather_async(rows.reshape(1, -1), None, process_set).wait()
        op = Sum if _is_transposed() else Average
        reduced = _reduced(gradients, op, (1.0, 1.0), process_set)
        first = all_rows[: process_set.rank()].sum(dim=0).tolist()
        mine = [
            total.narrow(0, start, count).reshape(shape)
            for total, start, count, shape in zip(
                reduced, first, context.rows, context.shapes, strict=True
            )
        ]
        return (None, None, None, *mine)


def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Concatenates `tensor` of every rank along axis 0, in rank order; a new tensor.

    tensor: shape (n_r, *rest); `rest` and dtype equal on all ranks, n_r may differ.
    Differentiable.  Blocks.  Raises Mismatch if dtype or `rest` differ, PeerLost if a rank died.
    """
    result: torch.Tensor
    if not _needs_gradient(tensor):
        result = waited_for(collected.allgather_async, tensor, name, process_set)
    else:
        (result,) = _apply(_Allgather, name, process_set, False, tensor)
    return result


def grouped_allgather(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Gathers several tensors, which travel together.  See `allgather`."""
    return list(_apply(_Allgather, name, process_set, True, *tensors))


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any,
        tensor: torch.Tensor,
        root_rank: int,
        name: str | None,
        process_set: ProcessSet,
    ) -> torch.Tensor:
        context.root_rank, context.process_set = root_rank, process_set
        result: torch.Tensor = waited_for(
            collectives.broadcast_async, tensor, root_rank, name, process_set
        )
        return result

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> Any:
        op = Sum if _is_transposed() else Average
        (reduced,) = _reduced([gradient], op, (1.0, 1.0), context.process_set)
        if rabit.rank() != context.root_rank:
            nothing = torch.ones((), dtype=torch.bool, device=reduced.device)
            reduced = reduced.masked_fill(nothing, 0)  # which stays in the graph, other than zeros
        return reduced, None, None, None


def broadcast(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Returns the tensor of `root_rank` (a global rank) on every rank, a new tensor.

    Shapes and dtypes must be equal on all ranks.  Differentiable.  Blocks.
    Raises Mismatch if shape, dtype or root differ between ranks, PeerLost if a rank died.
    """
    result: torch.Tensor
    if not _needs_gradient(tensor):
        result = waited_for(collectives.broadcast_async, tensor, root_rank, name, process_set)
    else:
        result = _apply(_Broadcast, tensor, root_rank, name, process_set)
    return result


class _Alltoall(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any, tensor: torch.Tensor, splits: Any, name: str | None, process_set: ProcessSet
    ) -> Any:
        rows, received = waited_for(collected.start_alltoall, tensor, splits, name, process_set)
        context.received, context.process_set = received.tolist(), process_set
        context.mark_non_differentiable(received)
        return rows, received

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor, *_: Any) -> Any:
        call = (gradient, context.received, None, context.process_set)
        if torch.is_grad_enabled():
            rows, _received = _apply(_Alltoall, *call)
        else:
            rows, _received = collected.alltoall_async(*call).wait()
        return rows, None, None, None


def alltoall(
    tensor: torch.Tensor,
    splits: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Sends rows of axis 0 to every rank and returns the rows received, in rank order.

    splits: rows for each rank (integers, sum = extent 0); None: extent 0 is divided evenly.
    Returns the rows; with splits the pair (rows, received_splits as int32).  Differentiable.  Blocks.
    Raises Mismatch if dtype or the other extents differ between ranks, PeerLost if a rank died.
    """
    if not _needs_gradient(tensor):
        return waited_for(collected.alltoall_async, tensor, splits, name, process_set)
    rows, received = _apply(_Alltoall, tensor, splits, name, process_set)
    return rows if splits is None else (rows, received)


class _Reducescatter(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any,
        name: str | None,
        op: ReduceOp,
        process_set: ProcessSet,
        prescale: float,
        postscale: float,
        is_grouped: bool,
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        context.op, context.process_set = op, process_set
        context.factor = prescale * postscale
        call = (tensors, name, op, process_set, prescale, postscale, is_grouped)
        result = waited_for(collected.start_reducescatter, *call)
        return tuple(result) if is_grouped else (result,)

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> Any:
        _refuse_gradient("reducescatter", context.op)
        factor = context.factor
        if context.op == ReduceOp.AVERAGE:
            factor /= context.process_set.size()
        if not _is_transposed():  # Horovod takes the gradient of the mean for that of the sum
            factor *= context.process_set.size()
        if torch.is_grad_enabled():
            gathered = _apply(_Allgather, None, context.process_set, True, *gradients)
        else:
            gathered = collected.grouped_allgather_async(
                gradients, None, context.process_set
            ).wait()
        return (None,) * 6 + tuple(tensor * factor for tensor in gathered)


def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: Any = Compression.none,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Reduces over all ranks and returns this rank's part of axis 0, a new tensor.

    Extent 0 is divided as evenly as it goes; the low ranks get one row more.  Differentiable for Sum
    and Average.  Blocks.
    Raises Mismatch if shape, dtype or op differ between ranks, PeerLost if a rank died.
    """
    factors = (prescale_factor, postscale_factor)
    if compression is Compression.none and not _needs_gradient(tensor):
        call = ([tensor], name, op, process_set, *factors, False)
        mine: torch.Tensor = waited_for(collected.start_reducescatter, *call)
        return mine
    what = f"reducescatter '{name}'"
    with awaited(Kind.REDUCESCATTER, name, process_set):
        compressor = by_hand(compression, what)
        resolved = scatter_op(op, what)
        wire, undo = compressor.compress(tensor)
    (mine,) = _apply(_Reducescatter, name, resolved, process_set, *factors, False, wire)
    return compressor.decompress(mine, undo)


def grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    compression: Any = Compression.none,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """Reduces and scatters several tensors, which travel together.  See `reducescatter`."""
    tensors = list(tensors)
    what = f"grouped reducescatter '{name}'"
    with awaited(Kind.REDUCESCATTER, name, process_set, len(tensors)):
        compressor = by_hand(compression, what)
        resolved = scatter_op(op, what)
        pairs = [compressor.compress(tensor) for tensor in tensors]
    wires = [wire for wire, _ in pairs]
    factors = (prescale_factor, postscale_factor)
    results = _apply(_Reducescatter, name, resolved, process_set, *factors, True, *wires)
    return [compressor.decompress(r, undo) for r, (_, undo) in zip(results, pairs, strict=True)]
