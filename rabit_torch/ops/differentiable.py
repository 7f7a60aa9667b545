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
from rabit_torch.ops.arguments import awaited, listed, reduce_op, scatter_op
from rabit_torch.ops.operations import WAITED

# What a call and those of its backward pass have in common: name, process set, engine and arguments; see Form.run.
_Call = tuple[str | None, ProcessSet, None, tuple[Any, ...]]


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
        call: _Call,
        is_grouped: bool,
        *tensors: torch.Tensor,
    ) -> Any:
        context.call = call
        if not is_grouped:
            return WAITED.new.run(tensors[0], *call)
        return tuple(WAITED.new.run_group(tensors, *call))

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> Any:
        # The reduction is linear for Sum and Average, and so is its transpose: itself.
        _, process_set, _, (_, op, prescale, postscale, _, *travel) = context.call
        _refuse_gradient("allreduce", op)
        return (None, None, *_reduced(gradients, op, (postscale, prescale), process_set, travel))


def _reduced(
    gradients: Sequence[torch.Tensor],
    op: ReduceOp,
    factors: tuple[float, float],
    process_set: ProcessSet,
    travel: Sequence[Any],
) -> Sequence[torch.Tensor]:
    """The allreduces of gradients in a backward pass.  travel: priority and backend."""
    call = (None, process_set, None, (None, op, *factors, rabit.Compression.none, *travel))
    reduced: Sequence[torch.Tensor]
    if torch.is_grad_enabled():
        reduced = _apply(_Allreduce, call, True, *gradients)
    else:
        reduced = WAITED.new.run_group(gradients, *call)
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
    *,
    priority: int = 0,
    backend: str = "",
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
        plain = (average, op, *factors, compression, priority, backend)
        result: torch.Tensor = WAITED.new.run(tensor, name, process_set, None, plain)
        return result
    with awaited(Kind.ALLREDUCE, name, process_set):
        resolved = reduce_op(op, average)
        codec, compressor = split(compression)
        wire, undo = (tensor, None) if compressor is IDENTITY else compressor.compress(tensor)
    fields = (None, resolved, *factors, codec, priority, backend)
    result = _apply(_Allreduce, (name, process_set, None, fields), False, wire)
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
    *,
    priority: int = 0,
    backend: str = "",
) -> list[torch.Tensor]:
    """Returns the list of the reductions of several tensors, which travel together.  See `allreduce`.

    Differentiable for Sum and Average.  Blocks.
    """
    tensors = listed(tensors, Kind.ALLREDUCE, name, process_set)
    with awaited(Kind.ALLREDUCE, name, process_set, len(tensors)):
        codec, compressor = split(compression)
        pairs = [compressor.compress(tensor) for tensor in tensors]
        factors = (prescale_factor, postscale_factor)
        fields = (None, reduce_op(op, average), *factors, codec, priority, backend)
        call = (name, process_set, None, fields)
    results = _apply(_Allreduce, call, True, *[wire for wire, _ in pairs])
    return [compressor.decompress(r, undo) for r, (_, undo) in zip(results, pairs, strict=True)]


class _Allgather(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any,
        call: _Call,
        is_grouped: bool,
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        context.call = call
        context.rows = [tensor.shape[0] if tensor.dim() else 1 for tensor in tensors]
        context.shapes = [tensor.shape for tensor in tensors]
        if not is_grouped:
            return (WAITED.gathered.run(tensors[0], *call),)
        return tuple(WAITED.gathered.run_group(tensors, *call))

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> Any:
        rows = torch.tensor(context.rows)
        _, process_set, _, travel = context.call
        all_rows = WAITED.gathered.run(rows.reshape(1, -1), None, process_set, None, travel)
        op = Sum if _is_transposed() else Average
        reduced = _reduced(gradients, op, (1.0, 1.0), process_set, travel)
        first = all_rows[: process_set.rank()].sum(dim=0).tolist()
        mine = [
            total.narrow(0, start, count).reshape(shape)
            for total, start, count, shape in zip(
                reduced, first, context.rows, context.shapes, strict=True
            )
        ]
        return (None, None, *mine)


def allgather(
    tensor: torch.Tensor,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    *,
    priority: int = 0,
    backend: str = "",
) -> torch.Tensor:
    """Concatenates `tensor` of every rank along axis 0, in rank order; a new tensor.

    tensor: shape (n_r, *rest); `rest` and dtype equal on all ranks, n_r may differ.
    Differentiable.  Blocks.  Raises Mismatch if dtype or `rest` differ, PeerLost if a rank died.
    """
    call = (name, process_set, None, (priority, backend))
    result: torch.Tensor
    if not _needs_gradient(tensor):
        result = WAITED.gathered.run(tensor, *call)
    else:
        (result,) = _apply(_Allgather, call, False, tensor)
    return result


def grouped_allgather(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    *,
    priority: int = 0,
    backend: str = "",
) -> list[torch.Tensor]:
    """Gathers several tensors, which travel together; the list of results.  See `allgather`.

    Differentiable.  Blocks.
    """
    tensors = listed(tensors, Kind.ALLGATHER, name, process_set)
    call = (name, process_set, None, (priority, backend))
    return list(_apply(_Allgather, call, True, *tensors))


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any,
        call: _Call,
        tensor: torch.Tensor,
    ) -> Any:
        context.call = call
        return WAITED.new_broadcast.run(tensor, *call)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> Any:
        _, process_set, _, (root_rank, *travel) = context.call
        op = Sum if _is_transposed() else Average
        (reduced,) = _reduced([gradient], op, (1.0, 1.0), process_set, travel)
        if rabit.rank() != root_rank:
            nothing = torch.ones((), dtype=torch.bool, device=reduced.device)
            reduced = reduced.masked_fill(nothing, 0)  # which stays in the graph, other than zeros
        return None, reduced


def broadcast(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    *,
    priority: int = 0,
    backend: str = "",
) -> torch.Tensor:
    """Returns the tensor of `root_rank` (a global rank) on every rank, a new tensor.

    Shapes and dtypes must be equal on all ranks.  Differentiable.  Blocks.
    Raises Mismatch if shape, dtype or root differ between ranks, PeerLost if a rank died.
    """
    call = (name, process_set, None, (root_rank, priority, backend))
    result: torch.Tensor
    if not _needs_gradient(tensor):
        result = WAITED.new_broadcast.run(tensor, *call)
    else:
        result = _apply(_Broadcast, call, tensor)
    return result


class _Alltoall(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any,
        call: _Call,
        splits: Any,
        tensor: torch.Tensor,
    ) -> Any:
        rows, received = WAITED.all_to_all.run(tensor, *call, (splits, True))
        context.received, context.call = received.tolist(), call
        context.mark_non_differentiable(received)
        return rows, received

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor, *_: Any) -> Any:
        _, process_set, _, fields = context.call
        call = (None, process_set, None, fields)
        if torch.is_grad_enabled():
            rows, _received = _apply(_Alltoall, call, context.received, gradient)
        else:
            rows, _received = WAITED.all_to_all.run(gradient, *call, (context.received, True))
        return None, None, rows


def alltoall(
    tensor: torch.Tensor,
    splits: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    *,
    priority: int = 0,
    backend: str = "",
) -> Any:
    """Sends rows of axis 0 to every rank and returns the rows received, in rank order.

    splits: rows for each rank (integers, sum = extent 0); None: extent 0 is divided evenly.
    Returns the rows; with splits the pair (rows, received_splits as int32).  Differentiable.  Blocks.
    Raises Mismatch if dtype or the other extents differ between ranks, PeerLost if a rank died.
    """
    call = (name, process_set, None, (priority, backend))
    if not _needs_gradient(tensor):
        return WAITED.all_to_all.run(tensor, *call, None if splits is None else (splits, True))
    rows, received = _apply(_Alltoall, call, splits, tensor)
    return rows if splits is None else (rows, received)


class _Reducescatter(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any,
        call: _Call,
        is_grouped: bool,
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        context.call = call
        if not is_grouped:
            return (WAITED.reducescattered.run(tensors[0], *call),)
        return tuple(WAITED.reducescattered.run_group(tensors, *call))

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> Any:
        _, process_set, _, (op, prescale, postscale, *travel) = context.call
        _refuse_gradient("reducescatter", op)
        factor, size = prescale * postscale, process_set.size()
        if op == ReduceOp.AVERAGE:
            factor /= size
        if not _is_transposed():  # Horovod takes the gradient of the mean for that of the sum
            factor *= size
        call = (None, process_set, None, tuple(travel))
        if torch.is_grad_enabled():
            gathered = _apply(_Allgather, call, True, *gradients)
        else:
            gathered = WAITED.gathered.run_group(gradients, *call)
        return (None, None, *(tensor * factor for tensor in gathered))


def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: Any = Compression.none,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    *,
    priority: int = 0,
    backend: str = "",
) -> torch.Tensor:
    """Reduces over all ranks and returns this rank's part of axis 0, a new tensor.

    Extent 0 is divided as evenly as it goes; the low ranks get one row more.  Differentiable for Sum
    and Average.  Blocks.
    Raises Mismatch if shape, dtype or op differ between ranks, PeerLost if a rank died.
    """
    factors = (prescale_factor, postscale_factor)
    mine: torch.Tensor
    if compression is Compression.none and not _needs_gradient(tensor):
        fields = (op, *factors, priority, backend)
        mine = WAITED.reducescattered.run(tensor, name, process_set, None, fields)
        return mine
    what = f"reducescatter '{name}'"
    with awaited(Kind.REDUCESCATTER, name, process_set):
        compressor = by_hand(compression, what)
        resolved = scatter_op(op, what)
        wire, undo = compressor.compress(tensor)
    call = (name, process_set, None, (resolved, *factors, priority, backend))
    (mine,) = _apply(_Reducescatter, call, False, wire)
    return compressor.decompress(mine, undo)


def grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    compression: Any = Compression.none,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    *,
    priority: int = 0,
    backend: str = "",
) -> list[torch.Tensor]:
    """Reduces and scatters several tensors, which travel together; the list of results.  See `reducescatter`.

    Differentiable for Sum and Average.  Blocks.
    """
    tensors = listed(tensors, Kind.REDUCESCATTER, name, process_set)
    what = f"grouped reducescatter '{name}'"
    with awaited(Kind.REDUCESCATTER, name, process_set, len(tensors)):
        compressor = by_hand(compression, what)
        resolved = scatter_op(op, what)
        pairs = [compressor.compress(tensor) for tensor in tensors]
    fields = (resolved, prescale_factor, postscale_factor, priority, backend)
    call = (name, process_set, None, fields)
    results = _apply(_Reducescatter, call, True, *[wire for wire, _ in pairs])
    return [compressor.decompress(r, undo) for r, (_, undo) in zip(results, pairs, strict=True)]
