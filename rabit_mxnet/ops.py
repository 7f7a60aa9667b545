"""Collectives on MXNet arrays, with Horovod's signatures.

Arguments that all share:

    tensor       a dense array of mxnet.nd or mxnet.np in CPU memory.
    name         tells tensors apart, equal on all ranks; None: numbered by the order of the calls,
                 which must then be the same on all ranks.
    priority     larger runs first, in MXNet's engine and in rabit's.
    process_set  who takes part; roots and peers are global ranks all the same.
    backend      "builtin" or "mpi"; "": the default, which RABIT_BACKEND names first.  Equal on all ranks.

The calls return at once, like every operation of MXNet, and the array that they return waits when
it is read.  Errors (Mismatch if the ranks disagree, PeerLost if a rank died) reach Python there.
What says so blocks: allgather and alltoall, since the shape of their result depends on the other ranks,
and operations in which one rank differs.  What cannot work raises InvalidArgument or Unsupported here, and
InvalidArgument on the ranks that wait for the call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import rabit
from rabit import Average, Kind, ProcessSet, ReduceOp, global_process_set
from rabit.framework import Builder, Draft, listed
from rabit_mxnet.adapter import WAITED, put_back
from rabit_mxnet.arrays import check, empty_like, may_be_blocked, private_copy
from rabit_mxnet.compression import Compression
from rabit_mxnet.execution import run
from rabit_mxnet.operation import Operation

_build = Builder[Any](__name__)

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
    backend: str = "",
) -> Any:
    """Combines `tensor` of every rank element by element; a new array, the same on every rank.

    op: Average unless given; Sum, Min, Max, Product, or bitwise on integers and bool.
    average: the old form of `op`; True is Average, False is Sum.
    """
    fields = (average, op, prescale_factor, postscale_factor, compression)
    travel = (name, process_set, priority, backend)
    return _allreduce([tensor], False, fields, travel, is_grouped=False)[0]


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
    backend: str = "",
) -> Any:
    """Like `allreduce`, but the result replaces the values of `tensor`, which is returned."""
    fields = (average, op, prescale_factor, postscale_factor, compression)
    travel = (name, process_set, priority, backend)
    return _allreduce([tensor], True, fields, travel, is_grouped=False)[0]


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
    backend: str = "",
) -> list[Any]:
    """`allreduce` of several tensors, which become ready together; the list of the results."""
    fields = (average, op, prescale_factor, postscale_factor, compression)
    travel = (name, process_set, priority, backend)
    return _allreduce(tensors, False, fields, travel, is_grouped=True)


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
    backend: str = "",
) -> list[Any]:
    """`allreduce_` of several tensors, which become ready together; returns the list."""
    fields = (average, op, prescale_factor, postscale_factor, compression)
    travel = (name, process_set, priority, backend)
    return _allreduce(tensors, True, fields, travel, is_grouped=True)


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
    fields = (None, op, *factors, compression)
    operations = []
    for gradient, name in zip(gradients, names, strict=True):
        with Draft.of(None, Kind.ALLREDUCE, name, process_set) as draft:
            check(gradient, str(draft))
            operations.append(Operation(_reduction(draft, *fields), gradient, gradient))
    run(operations, priority)


def scatter_gradients(
    whole: Any, part: Any, name: str, priority: int, process_set: ProcessSet
) -> None:
    """Sums the rows of `whole` over the ranks, into this rank's rows, `part`."""
    with Draft.of(None, Kind.REDUCESCATTER, name, process_set) as draft:
        request = _reduction(draft, None, rabit.Sum, 1.0, 1.0)
    run([Operation(request, whole, part)], priority)


def gather_parts(part: Any, whole: Any, name: str, priority: int, process_set: ProcessSet) -> None:
    """Puts the rows of all ranks into `whole`, whose even share they are."""
    with Draft.of(None, Kind.ALLGATHER, name, process_set) as draft:
        request = draft.request(None, None, lambda _: None)
    run([Operation(request, part, whole)], priority)


_Travel = tuple[str | None, ProcessSet, int, str]  # name, process set, priority and backend


def _reduction(
    draft: Draft,
    average: bool | None,
    op: Any,
    prescale: float,
    postscale: float,
    compression: Any = Compression.none,
) -> rabit.Request:
    request = draft.request(None, None, lambda _: None)
    draft.scale(request, op, average, prescale, postscale)
    request.codec = draft.engine.codec_id(compression)
    return request


def _start(
    kind: Kind,
    tensors: Sequence[Any],
    travel: _Travel,
    make: Callable[[Draft, Any], Operation],
    *,
    is_grouped: bool = False,
) -> list[Any]:
    """Starts what `make` makes of each tensor, and returns the arrays that will hold the results.

    What goes wrong before is reported to the ranks that wait for the call.
    """
    name, process_set, priority, backend = travel
    full_name = None if name is None else f"{kind}.{name}"
    if is_grouped:
        tensors = listed(tensors, lambda: Draft.of(None, kind, full_name, process_set))
    draft = Draft.of(None, kind, full_name, process_set)
    draft.backend = backend
    draft.count = len(tensors) if is_grouped else None
    with draft:
        operations = []
        for index, tensor in enumerate(tensors):
            member = draft.member(index) if is_grouped else draft
            check(tensor, f"the argument of {member}")
            operations.append(make(member, tensor))
    run(operations, priority)
    return [operation.target for operation in operations]


def _allreduce(
    tensors: Sequence[Any],
    is_in_place: bool,
    fields: tuple[Any, ...],
    travel: _Travel,
    *,
    is_grouped: bool,
) -> list[Any]:
    """fields: average, op, the two factors and the compression."""

    def make(draft: Draft, tensor: Any) -> Operation:
        target = _place_for(tensor, is_in_place)
        return Operation(_reduction(draft, *fields), target, target)

    targets = _start(Kind.ALLREDUCE, tensors, travel, make, is_grouped=is_grouped)
    return list(map(put_back, targets, tensors)) if is_in_place else targets


def _place_for(tensor: Any, is_in_place: bool) -> Any:
    """The array that the engine works on: `tensor` where that is asked for and possible."""
    return tensor if is_in_place and not may_be_blocked(tensor) else private_copy(tensor)


# --- broadcast ------------------------------------------------------------------------------------


def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
    *,
    backend: str = "",
) -> Any:
    """A new array with the values that `tensor` has on rank `root_rank` (a global rank)."""
    return _broadcast(tensor, root_rank, (name, process_set, priority, backend), is_in_place=False)


def broadcast_(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
    *,
    backend: str = "",
) -> Any:
    """Gives `tensor` the values that it has on rank `root_rank`, and returns it."""
    target = _broadcast(tensor, root_rank, (name, process_set, priority, backend), is_in_place=True)
    return put_back(target, tensor)


def _broadcast(tensor: Any, root_rank: int, travel: _Travel, *, is_in_place: bool) -> Any:
    def make(draft: Draft, tensor: Any) -> Operation:
        request = draft.request(None, None, lambda _: None)
        request.root = draft.check_rank(root_rank, "root_rank")
        target = _place_for(tensor, is_in_place)
        return Operation(request, target, target)

    return _start(Kind.BROADCAST, [tensor], travel, make)[0]


# --- reducescatter --------------------------------------------------------------------------------


def reducescatter(
    tensor: Any,
    op: ReduceOp = Average,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    *,
    backend: str = "",
) -> Any:
    """Combines `tensor` of every rank, and returns this rank's share of the rows, a new array.

    tensor: shape (n, *rest), the same on all ranks.  The ranks get n // size rows each, in rank
    order, and the first n % size of them one more.
    """
    fields = (None, op, prescale_factor, postscale_factor)
    travel = (name, process_set, priority, backend)
    return _reducescatter([tensor], fields, travel, is_grouped=False)[0]


def grouped_reducescatter(
    tensors: Sequence[Any],
    op: ReduceOp = Average,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    *,
    backend: str = "",
) -> list[Any]:
    """`reducescatter` of several tensors, which become ready together."""
    fields = (None, op, prescale_factor, postscale_factor)
    travel = (name, process_set, priority, backend)
    return _reducescatter(tensors, fields, travel, is_grouped=True)


def _reducescatter(
    tensors: Sequence[Any], fields: tuple[Any, ...], travel: _Travel, *, is_grouped: bool
) -> list[Any]:
    """fields: average, op and the two factors."""
    process_set = travel[1]

    def make(draft: Draft, tensor: Any) -> Operation:
        if tensor.ndim == 0:
            raise draft.refusal("a scalar has no rows to share out. Use allreduce.")
        share, longer = divmod(tensor.shape[0], process_set.size())
        rows = share + (1 if process_set.rank() < longer else 0)
        if share == 0:
            raise draft.refusal(
                f"{tensor.shape[0]} rows do not give every one of {process_set.size()} ranks a row, and an "
                "MXNet array has at least one. Use allreduce."
            )
        target = empty_like(tensor, (rows, *tensor.shape[1:]))
        source = private_copy(tensor) if may_be_blocked(tensor) else tensor
        return Operation(_reduction(draft, *fields), source, target)

    return _start(Kind.REDUCESCATTER, tensors, travel, make, is_grouped=is_grouped)


# --- operations whose result has a shape that the other ranks decide --------------------------------


def allgather(
    tensor: Any,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
    *,
    backend: str = "",
) -> Any:
    """Concatenates `tensor` of every rank along axis 0, in rank order; a new array.  Blocks.

    tensor: shape (n_r, *rest); `rest` and dtype equal on all ranks, n_r may differ.
    """
    return WAITED.gathered.run(tensor, name, process_set, None, (priority, backend))


def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
    *,
    backend: str = "",
) -> list[Any]:
    """`allgather` of several tensors, which become ready together.  Blocks."""
    results: list[Any] = WAITED.gathered.run_group(
        tensors, name, process_set, None, (priority, backend)
    )
    return results


def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
    *,
    backend: str = "",
) -> Any:
    """Sends each rank its rows of `tensor`, and returns the rows that came, in rank order.  Blocks.

    splits: rows for each rank (integers), adding up to all; None: equal parts.
    Returns a new array; with `splits` the pair (array, rows from each rank as an int32 array).
    """
    operands = None if splits is None else (splits, True)
    return WAITED.all_to_all.run(tensor, name, process_set, None, (priority, backend), operands)


# --- operations in which one rank differs -----------------------------------------------------------

reduce = _build.waits(
    WAITED.reduce,
    """Combines `tensor` of every rank element by element, for rank `root_rank` alone.

    Returns a new array of its shape and type there, None elsewhere.  Blocks.
    """,
)
gather = _build.waits(
    WAITED.gather,
    """Concatenates `tensor` of every rank along axis 0, in rank order, on rank `root_rank` alone.

    tensor: as of `allgather`.  Returns a new array there, None elsewhere.  Blocks.
    """,
)
scatter = _build.waits(
    WAITED.scatter,
    """This rank's rows of the array that rank `root_rank` has, a new array.

    tensor: shape (n, *rest) on the root; elsewhere its type and `rest` count.
    splits: on the root, rows for each rank (integers, adding up to n); None: n / size each.
    Blocks.
    """,
)
send = _build.waits(
    WAITED.send,
    """Sends `tensor` to global rank `dst`, which calls `recv` with the same name, shape and type.

    name: None numbers the messages from this rank to `dst` in the order of the calls.  Blocks until `tensor` may
    be changed.
    """,
)
recv = _build.waits(
    WAITED.recv,
    """Receives into `tensor` what global rank `src` sends, and returns it.  Blocks.

    name: None numbers the messages from `src` to this rank in the order of the calls.
    """,
)
