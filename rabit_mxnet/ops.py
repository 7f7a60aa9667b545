"""Collectives on MXNet arrays, with Horovod's signatures.

Arguments that all share:

    tensor       a dense array of mxnet.nd or mxnet.np in CPU memory.
    name         tells tensors apart, equal on all ranks; None: numbered by the order of the calls,
                 which must then be the same on all ranks.
    priority     larger runs first, in MXNet's engine and in rabit's.
    process_set  who takes part; roots are global ranks all the same.

The calls return at once, like every operation of MXNet, and the array that they return waits when
it is read.  Errors (Mismatch if the ranks disagree, PeerLost if a rank died) reach Python there.
allgather and alltoall block, since the shape of their result depends on the other ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import rabit
from rabit import (
    Average,
    InvalidArgument,
    Kind,
    ProcessSet,
    ReduceOp,
    Request,
    global_process_set,
)
from rabit.framework import group_on
from rabit_mxnet.arrays import array_like, check, may_be_blocked, private_copy, read_view
from rabit_mxnet.compression import Compression
from rabit_mxnet.execution import run, wait_all
from rabit_mxnet.loaded import mx
from rabit_mxnet.operation import Operation

# --- allreduce ------------------------------------------------------------------------------------


def allreduce(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: ReduceOp | None = None,
    *,
    compression: Any = Compression.none,
) -> Any:
    """Combines `tensor` of every rank element by element; a new array, the same on every rank.

    op: Average unless given; Sum, Min, Max, Product, or bitwise on integers and bool.
    average: the old form of `op`; True is Average, False is Sum.
    """
    scale = _scale(average, op, prescale_factor, postscale_factor, process_set, compression)
    return _allreduce([tensor], False, name, priority, scale, is_grouped=False)[0]


def allreduce_(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: ReduceOp | None = None,
    *,
    compression: Any = Compression.none,
) -> Any:
    """Like `allreduce`, but the result replaces the values of `tensor`, which is returned."""
    scale = _scale(average, op, prescale_factor, postscale_factor, process_set, compression)
    return _allreduce([tensor], True, name, priority, scale, is_grouped=False)[0]


def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: ReduceOp | None = None,
    *,
    compression: Any = Compression.none,
) -> list[Any]:
    """`allreduce` of several tensors, which become ready together; the list of the results."""
    scale = _scale(average, op, prescale_factor, postscale_factor, process_set, compression)
    return _allreduce(tensors, False, name, priority, scale, is_grouped=True)


def grouped_allreduce_(
    tensors: Sequence[Any],
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: ReduceOp | None = None,
    *,
    compression: Any = Compression.none,
) -> list[Any]:
    """`allreduce_` of several tensors, which become ready together; returns the list."""
    scale = _scale(average, op, prescale_factor, postscale_factor, process_set, compression)
    return _allreduce(tensors, True, name, priority, scale, is_grouped=True)


def reduce_gradients(
    gradients: Sequence[Any],
    names: Sequence[str],
    priority: int,
    op: ReduceOp,
    factors: tuple[float, float],
    process_set: ProcessSet,
    compression: Any = Compression.none,
) -> None:
    """Reduces gradients over the ranks in place.  factors: before and after the reduction.

    For arrays that MXNet's backward pass has written, which are always in row-major order.
    """
    fields = _scale(None, op, *factors, process_set, compression)
    operations = []
    for gradient, name in zip(gradients, names, strict=True):
        each = Operation(Kind.ALLREDUCE, name, gradient, gradient, fields)
        check(gradient, each.what)
        operations.append(each)
    run(operations, priority)


def _scale(
    average: bool | None,
    op: ReduceOp | None,
    prescale_factor: float,
    postscale_factor: float,
    process_set: ProcessSet,
    compression: Any,
) -> dict[str, Any]:
    if average is not None and op is not None:
        raise InvalidArgument(
            f"both average={average} and op={op!r} are given. Pass op alone; average is its old form."
        )
    if average is not None:
        op = rabit.Average if average else rabit.Sum
    engine = rabit.default_engine()
    return {
        "op": rabit.Average if op is None else _reduce_op(op),
        "prescale": float(prescale_factor),
        "postscale": float(postscale_factor),
        "group": group_on(process_set, engine),
        "codec": engine.codec_id(compression),
    }


def _reduce_op(op: Any) -> ReduceOp:
    try:
        return ReduceOp(op)
    except ValueError:
        known = ", ".join(f"{each} ({each.value})" for each in ReduceOp)
        raise InvalidArgument(f"op is {op!r}, which is no reduction. Known: {known}.") from None


def _allreduce(
    tensors: Sequence[Any],
    is_in_place: bool,
    name: str | None,
    priority: int,
    fields: dict[str, Any],
    is_grouped: bool,
) -> list[Any]:
    names = _names(Kind.ALLREDUCE, name, fields["group"], tensors, is_grouped)
    for tensor, each in zip(tensors, names, strict=True):
        check(tensor, f"the argument of allreduce '{each}'")
    targets = [_place_for(tensor, is_in_place) for tensor in tensors]
    run(
        [
            Operation(Kind.ALLREDUCE, each, target, target, fields)
            for each, target in zip(names, targets, strict=True)
        ],
        priority,
    )
    return [
        _put_back(target, tensor) if is_in_place else target
        for target, tensor in zip(targets, tensors, strict=True)
    ]


def _place_for(tensor: Any, is_in_place: bool) -> Any:
    """The array that the engine works on: `tensor` where that is asked for and possible."""
    return tensor if is_in_place and not may_be_blocked(tensor) else private_copy(tensor)


def _put_back(result: Any, tensor: Any) -> Any:
    """Gives `tensor` the values of `result`, if that is another array; returns `tensor`."""
    if result is not tensor:
        with mx.autograd.pause():
            tensor[:] = result
    return tensor


def _names(
    kind: Kind, name: str | None, group: int, tensors: Sequence[Any], is_grouped: bool
) -> list[str]:
    base = rabit.default_engine().number_of(kind, group) if name is None else f"{kind}.{name}"
    if not is_grouped:
        return [base]
    if not isinstance(tensors, (list, tuple)) or not tensors:
        raise InvalidArgument(
            f"grouped {kind} '{base}' takes a list of one or more arrays, not "
            f"{type(tensors).__name__}. For one array use the form without 'grouped_'."
        )
    return [f"{base}.{index}" for index in range(len(tensors))]


# --- broadcast ------------------------------------------------------------------------------------


def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """A new array with the values that `tensor` has on rank `root_rank` (a global rank)."""
    return _broadcast(tensor, root_rank, name, priority, process_set, is_in_place=False)


def broadcast_(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Gives `tensor` the values that it has on rank `root_rank`, and returns it."""
    return _broadcast(tensor, root_rank, name, priority, process_set, is_in_place=True)


def _broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None,
    priority: int,
    process_set: ProcessSet,
    is_in_place: bool,
) -> Any:
    group = group_on(process_set, rabit.default_engine())
    (full_name,) = _names(Kind.BROADCAST, name, group, (tensor,), is_grouped=False)
    check(tensor, f"the argument of broadcast '{full_name}'")
    ranks = process_set.ranks
    if root_rank not in ranks:
        raise InvalidArgument(
            f"broadcast '{full_name}': root_rank is {root_rank}, which is not among the ranks "
            f"{ranks}. Pass the global rank of a member."
        )
    target = _place_for(tensor, is_in_place)
    fields = {"root": root_rank, "group": group}
    run([Operation(Kind.BROADCAST, full_name, target, target, fields)], priority)
    return _put_back(target, tensor) if is_in_place else target


# --- reducescatter --------------------------------------------------------------------------------


def reducescatter(
    tensor: Any,
    op: ReduceOp = Average,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Combines `tensor` of every rank, and returns this rank's share of the rows, a new array.

    tensor: shape (n, *rest), the same on all ranks.  The ranks get n // size rows each, in rank
    order, and the first n % size of them one more.
    """
    scale = _scale(None, op, prescale_factor, postscale_factor, process_set, Compression.none)
    return _reducescatter([tensor], name, priority, scale, process_set, is_grouped=False)[0]


def grouped_reducescatter(
    tensors: Sequence[Any],
    op: ReduceOp = Average,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Any]:
    """`reducescatter` of several tensors, which become ready together."""
    scale = _scale(None, op, prescale_factor, postscale_factor, process_set, Compression.none)
    return _reducescatter(tensors, name, priority, scale, process_set, is_grouped=True)


def _reducescatter(
    tensors: Sequence[Any],
    name: str | None,
    priority: int,
    fields: dict[str, Any],
    process_set: ProcessSet,
    is_grouped: bool,
) -> list[Any]:
    operations = []
    for tensor, each in zip(
        tensors, _names(Kind.REDUCESCATTER, name, fields["group"], tensors, is_grouped), strict=True
    ):
        check(tensor, f"the argument of reducescatter '{each}'")
        if tensor.ndim == 0:
            raise InvalidArgument(
                f"reducescatter '{each}': a scalar has no rows to share out. Use allreduce."
            )
        share, longer = divmod(tensor.shape[0], process_set.size())
        rows = share + (1 if process_set.rank() < longer else 0)
        if rows == 0:
            raise InvalidArgument(
                f"reducescatter '{each}': {tensor.shape[0]} rows do not give every one of "
                f"{process_set.size()} ranks a row, and an MXNet array has at least one. Use allreduce."
            )
        make = mx.np.empty if isinstance(tensor, mx.np.ndarray) else mx.nd.empty
        target = make((rows, *tensor.shape[1:]), dtype=tensor.dtype, ctx=tensor.context)
        source = private_copy(tensor) if may_be_blocked(tensor) else tensor
        operations.append(Operation(Kind.REDUCESCATTER, each, source, target, fields))
    run(operations, priority)
    return [each.target for each in operations]


# --- operations whose result has a shape that the other ranks decide --------------------------------


def allgather(
    tensor: Any,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Concatenates `tensor` of every rank along axis 0, in rank order; a new array.  Blocks.

    tensor: shape (n_r, *rest); `rest` and dtype equal on all ranks, n_r may differ.
    """
    return _allgather([tensor], name, priority, process_set, is_grouped=False)[0]


def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """`allgather` of several tensors, which become ready together.  Blocks."""
    return _allgather(tensors, name, priority, process_set, is_grouped=True)


def _allgather(
    tensors: Sequence[Any],
    name: str | None,
    priority: int,
    process_set: ProcessSet,
    is_grouped: bool,
) -> list[Any]:
    engine = rabit.default_engine()
    group = group_on(process_set, engine)
    requests = []
    for tensor, each in zip(
        tensors, _names(Kind.ALLGATHER, name, group, tensors, is_grouped), strict=True
    ):
        view = _view_of_rows(Kind.ALLGATHER, tensor, each)
        requests.append(Request(Kind.ALLGATHER, each, view, priority=priority, group=group))
    handles = engine.submit(requests)
    wait_all(handles)
    return [
        array_like(handle.result(), tensor) for handle, tensor in zip(handles, tensors, strict=True)
    ]


def _view_of_rows(kind: Kind, tensor: Any, name: str) -> rabit.TensorView:
    what = f"the argument of {kind} '{name}'"
    view = read_view(check(tensor, what), what)
    if not view.shape:
        view.shape = (1,)
    return view


def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Sends each rank its rows of `tensor`, and returns the rows that came, in rank order.  Blocks.

    splits: rows for each rank (integers), adding up to all; None: equal parts.
    Returns a new array; with `splits` the pair (array, rows from each rank as an int32 array).
    """
    engine = rabit.default_engine()
    group = group_on(process_set, engine)
    (full_name,) = _names(Kind.ALLTOALL, name, group, (tensor,), is_grouped=False)
    view = _view_of_rows(Kind.ALLTOALL, tensor, full_name)
    request = Request(
        Kind.ALLTOALL,
        full_name,
        view,
        priority=priority,
        group=group,
        splits=_rows_for_ranks(splits, view.shape[0], process_set.size(), full_name),
    )
    (handle,) = engine.submit([request])
    received = array_like(handle.result(), tensor)
    if splits is None:
        return received
    return received, mx.nd.array(np.array(handle.received_splits, np.int32), dtype="int32")


def _rows_for_ranks(splits: Any, rows: int, size: int, name: str) -> list[int]:
    if splits is None:
        if rows % size:
            raise InvalidArgument(
                f"alltoall '{name}': {rows} rows cannot be divided evenly among {size} ranks. "
                "Pass splits, the rows for each rank."
            )
        return [rows // size] * size
    array = splits.asnumpy() if isinstance(splits, mx.nd.NDArray) else np.asarray(splits)
    if array.size and array.dtype.kind not in "iu":
        raise InvalidArgument(
            f"alltoall '{name}' on rank {rabit.rank()}: splits are {array.reshape(-1).tolist()} of "
            f"type {array.dtype}, and rows are counted in integers. Convert them, such as with "
            "splits.astype('int32')."
        )
    given = [int(each) for each in array.reshape(-1)]
    if len(given) != size or min(given) < 0 or sum(given) != rows:
        raise InvalidArgument(
            f"alltoall '{name}': splits are {given}, and the array has {rows} rows for {size} "
            "ranks. Pass one number per rank, none negative, that add up to the rows."
        )
    return given
