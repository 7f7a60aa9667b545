"""The collectives over arrays.

Every operation comes in a blocking form and an `_async` form that returns a Handle; forms with a
trailing underscore write the result into their argument.  Arguments that all share:

    tensor       a NumPy array, or anything with DLPack or the buffer protocol; scalars and lists of
                 numbers where nothing is written.  Read without a copy when contiguous.
    name         equal on all ranks; None: numbered by the order of the calls, which must then be
                 the same on all ranks.
    process_set  who takes part; roots and peers are global ranks all the same.
    priority     larger runs first.
    engine       None: the default engine.
    backend      "builtin" or "mpi"; "": the default, which RABIT_BACKEND names first.  Equal on all
                 ranks.

Results are NumPy arrays.  bfloat16 and 8-bit floats come as an array of the input's type, or as the bits in
unsigned integers where the input was a TensorView or came through DLPack.

Blocking forms return when the operation has finished on this rank.  Errors: Mismatch if the ranks
disagree about type, shape, operation or root; PeerLost if a rank died; InvalidArgument for what
cannot work, among them a name that is in flight; NotInitialized before init().
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rabit.compression import Compression, CompressionCodec
from rabit.engine.batch import WAITING
from rabit.engine.current import engine_for_work
from rabit.engine.engine import Engine
from rabit.engine.handle import Handle, no_handle, output_array
from rabit.engine.process_set import ProcessSet, global_process_set, group_on
from rabit.engine.request import Request
from rabit.engine.tensor import (
    TensorView,
    address_of,
    numpy_dtype,
    reshape,
    view_input,
    view_output,
)
from rabit.errors import InvalidArgument
from rabit.ops.again import Again
from rabit.ops.awaited import Awaited
from rabit.types import Kind, ReduceOp

__all__ = [
    "allgather",
    "allgather_async",
    "barrier",
    "barrier_async",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "poll",
    "reduce",
    "reduce_async",
    "reducescatter",
    "reducescatter_async",
    "synchronize",
]


def reduce_async(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    priority: int = 0,
    engine: Engine | None = None,
    backend: str = "",
) -> Handle:
    """Like `reduce`, but returns a Handle at once."""
    with Call(engine, Kind.REDUCE, name, process_set, priority, backend) as call:
        source = view_input(tensor, call)
        result, target = empty_like(source, tensor)
        is_root = call.engine.rank == root_rank
        request = call.request(source, target, finish=lambda _: result if is_root else None)
        request.root = call.check_rank(root_rank, "root_rank")
        scale(request, op, None, prescale_factor, postscale_factor)
    return call.submit(request)


def reduce(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    priority: int = 0,
    engine: Engine | None = None,
    backend: str = "",
) -> Any:
    """Like `allreduce`, but only rank `root_rank` gets the result; the others get None."""
    with WAITING:
        handle = reduce_async(
            tensor,
            root_rank,
            name,
            op,
            prescale_factor,
            postscale_factor,
            process_set,
            priority=priority,
            engine=engine,
            backend=backend,
        )
    return handle.result()


def reducescatter_async(
    tensor: Any,
    name: str | None = None,
    op: ReduceOp | None = None,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    *,
    priority: int = 0,
    engine: Engine | None = None,
    backend: str = "",
) -> Handle:
    """Like `reducescatter`, but returns a Handle at once."""
    arguments = (op, prescale_factor, postscale_factor, priority, backend)
    kind, finish = Kind.REDUCESCATTER, as_type_of(tensor)
    again = Again("reducescatter", kind, tensor, name, process_set, engine, arguments)
    handle = again.start(False, finish)
    if handle is not None:
        return handle
    with Call(again.engine, kind, again.name, process_set, priority, backend) as call:
        source = call.with_rows(view_input(tensor, call))
        request = call.request(source, None, finish=finish)
        scale(request, op, None, prescale_factor, postscale_factor)
    return again.submit(request)


def reducescatter(
    tensor: Any,
    name: str | None = None,
    compression: CompressionCodec = Compression.none,
    op: ReduceOp | None = None,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    *,
    priority: int = 0,
    engine: Engine | None = None,
    backend: str = "",
) -> Any:
    """Combines `tensor` of every rank, and returns this rank's share of the rows.

    tensor: shape (n, *rest), the same on all ranks.  The ranks get n // size rows each, in rank
    order, and the first n % size of them one more.  op: Average unless given.
    compression: only Compression.none.
    Blocks.  Raises Mismatch if shape, dtype or op differ between ranks, PeerLost if a rank died.
    """
    if compression != Compression.none:
        with Call(engine, Kind.REDUCESCATTER, name, process_set, priority, backend) as call:
            raise call.refusal(
                f"reducescatter takes no compression, and {compression} was given. Leave it out."
            )
    with WAITING:
        handle = reducescatter_async(
            tensor,
            name,
            op,
            process_set,
            prescale_factor,
            postscale_factor,
            priority=priority,
            engine=engine,
            backend=backend,
        )
    return handle.result()


def allgather_async(
    tensor: Any,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    *,
    priority: int = 0,
    engine: Engine | None = None,
    backend: str = "",
) -> Handle:
    """Like `allgather`, but returns a Handle at once."""
    kind, finish = Kind.ALLGATHER, as_type_of(tensor)
    again = Again("allgather", kind, tensor, name, process_set, engine, (priority, backend))
    handle = again.start(False, finish)
    if handle is not None:
        return handle
    with Call(again.engine, kind, again.name, process_set, priority, backend) as call:
        source = call.with_rows(view_input(tensor, call))
        request = call.request(source, None, finish=finish)
    return again.submit(request)


def allgather(
    tensor: Any,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    *,
    priority: int = 0,
    engine: Engine | None = None,
    backend: str = "",
) -> Any:
    """Concatenates `tensor` of every rank along axis 0, in rank order.

    tensor: shape (n_r, *rest); `rest` and dtype equal on all ranks, n_r may differ.  A scalar
    counts as one row.
    Returns a new array of shape (sum of n_r, *rest).
    Blocks.  Raises Mismatch if dtype or `rest` differ between ranks, PeerLost if a rank died.
    """
    with WAITING:
        handle = allgather_async(
            tensor, name, process_set, priority=priority, engine=engine, backend=backend
        )
    return handle.result()


def broadcast_async(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    *,
    priority: int = 0,
    engine: Engine | None = None,
    backend: str = "",
) -> Handle:
    """Like `broadcast`, but returns a Handle at once."""
    arguments = (root_rank, priority, backend)
    is_alone = type(tensor) is not np.ndarray  # else there is an array to make for the result
    again = Again(
        "broadcast",
        Kind.BROADCAST,
        tensor,
        name,
        process_set,
        engine,
        arguments,
        is_alone=is_alone,
    )
    if again.comes_again:
        array = np.empty(tensor.shape, tensor.dtype)
        handle = again.start(array, lambda _: array)
        if handle is not None:
            return handle
    with Call(again.engine, Kind.BROADCAST, again.name, process_set, priority, backend) as call:
        source = view_input(tensor, call)
        result, target = empty_like(source, tensor)
        request = call.request(source, target, finish=lambda _: result)
        request.root = call.check_rank(root_rank, "root_rank")
    return again.submit(request)


def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    *,
    priority: int = 0,
    engine: Engine | None = None,
    backend: str = "",
) -> Any:
    """A new array with the values that `tensor` has on rank `root_rank`.

    tensor: same shape and dtype on all ranks.  root_rank: a global rank of the process set.
    Blocks.  Raises Mismatch if shape, dtype or root differ between ranks, PeerLost if a rank died.
    """
    with WAITING:
        handle = broadcast_async(
            tensor, root_rank, name, process_set, priority=priority, engine=engine, backend=backend
        )
    return handle.result()


def broadcast_async_(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    *,
    priority: int = 0,
    engine: Engine | None = None,
    backend: str = "",
) -> Handle:
    """Like `broadcast_`, but returns a Handle at once."""
    arguments = (root_rank, priority, backend)
    again = Again("broadcast_", Kind.BROADCAST, tensor, name, process_set, engine, arguments)
    handle = again.start(None, lambda _: tensor)
    if handle is not None:
        return handle
    return again.submit(_broadcast_in_place(again, tensor, process_set, arguments))


def broadcast_(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    *,
    priority: int = 0,
    engine: Engine | None = None,
    backend: str = "",
) -> Any:
    """Gives `tensor` the values that it has on rank `root_rank`, and returns it.

    Blocks.  Raises Mismatch if shape, dtype or root differ between ranks, PeerLost if a rank died.
    """
    arguments = (root_rank, priority, backend)
    again = Again("broadcast_", Kind.BROADCAST, tensor, name, process_set, engine, arguments)
    if again.run(None):
        return tensor
    request = _broadcast_in_place(again, tensor, process_set, arguments)
    result = again.engine.run(request).result()
    again.keep(request)
    return result


def _broadcast_in_place(
    again: Again, tensor: Any, process_set: ProcessSet, arguments: tuple[int, int, str]
) -> Request:
    root_rank, priority, backend = arguments
    with Call(again.engine, Kind.BROADCAST, again.name, process_set, priority, backend) as call:
        target = view_output(tensor, call)
        request = call.request(target, target, finish=lambda _: tensor)
        request.root = call.check_rank(root_rank, "root_rank")
    return request


def barrier_async(
    process_set: ProcessSet = global_process_set,
    name: str | None = None,
    *,
    engine: Engine | None = None,
    backend: str = "",
) -> Handle:
    """Like `barrier`, but returns a Handle at once."""
    with Call(engine, Kind.BARRIER, name, process_set, 0, backend) as call:
        request = call.request(None, None, finish=lambda _: None)
    return call.submit(request)


def barrier(
    process_set: ProcessSet = global_process_set,
    name: str | None = None,
    *,
    engine: Engine | None = None,
    backend: str = "",
) -> None:
    """Returns when every rank has called it.

    It waits for ranks, not for operations: what this rank has started before may still be under way.
    """
    again = Again("barrier", Kind.BARRIER, None, name, process_set, engine, (backend,))
    if again.run(None):
        return
    with Call(again.engine, Kind.BARRIER, again.name, process_set, 0, backend) as call:
        request = call.request(None, None, finish=lambda _: None)
    call.run(request)
    again.keep(request)


def poll(handle: Any) -> bool:
    """True when the operation of `handle` has finished, well or not.  Returns at once."""
    try:
        done = handle.done
    except AttributeError:
        raise no_handle(handle, "poll") from None
    return bool(done())


def synchronize(handle: Any) -> Any:
    """Waits for the operation of `handle` and returns its result; raises its error if it failed."""
    try:
        result = handle.result
    except AttributeError:
        raise no_handle(handle, "synchronize") from None
    return result()


class Call(Awaited):
    """What the operations share while they build a request: inside the call as a context."""

    __slots__ = ("backend", "priority")

    name: str

    def __init__(
        self,
        engine: Engine | None,
        kind: Kind,
        name: str | None,
        process_set: ProcessSet,
        priority: int,
        backend: str = "",
    ) -> None:
        engine = engine_for_work() if engine is None else engine
        group = 0 if process_set is global_process_set else group_on(process_set, engine)
        super().__init__(
            engine, kind, engine.number_of(kind, group) if name is None else name, group
        )
        self.backend = backend
        self.priority = priority

    def __enter__(self) -> Call:
        return self

    def member(self, name: str) -> Call:
        """The same call under another name."""
        other = copy.copy(self)
        other.name = name
        return other

    def __str__(self) -> str:
        """How messages name the operation."""
        return f"{self.kind} '{self.name}' on rank {self.engine.rank}"

    def request(
        self,
        source: TensorView | None,
        target: TensorView | None,
        finish: Callable[[Handle], Any] | None = None,
    ) -> Request:
        return Request(
            self.kind,
            self.name,
            source,
            target,
            priority=self.priority,
            group=self.group,
            backend=self.engine.backend(self.backend) if self.backend else -1,
            finish=finish,
        )

    def submit(self, request: Request) -> Handle:
        return self.engine.submit((request,))[0]

    def run(self, request: Request) -> Any:
        return self.engine.run(request).result()

    def refusal(self, why: str) -> InvalidArgument:
        """The error of a call that cannot work."""
        return InvalidArgument(f"{self}: {why}")

    def check_rank(self, rank: int, argument: str) -> int:
        """`rank` if it is a global rank of the process set."""
        members = self.engine.members(self.group)
        if rank not in members:
            raise self.refusal(
                f"{argument} is {rank}, which is not among the ranks "
                f"{shorten(members)}. Pass the global rank of a member."
            )
        return rank

    def with_rows(self, view: TensorView) -> TensorView:
        """A scalar as one row."""
        return view if view.shape else reshape(view, (1,))

    def even_splits(self, view: TensorView) -> list[int]:
        """The same number of rows for every member."""
        size = len(self.engine.members(self.group))
        if view.shape[0] % size:
            raise self.refusal(
                f"{view.shape[0]} rows cannot be divided evenly among {size} ranks. "
                "Pass splits, the rows for each rank."
            )
        return [view.shape[0] // size] * size

    def check_splits(self, splits: Sequence[int], view: TensorView) -> list[int]:
        """`splits` if there is one per member and they add up to the rows of the tensor."""
        try:
            rows = [operator.index(count) for count in splits]
        except TypeError:
            raise self.refusal(
                f"splits are {splits!r}. Pass integers, the rows for each rank."
            ) from None
        size = len(self.engine.members(self.group))
        if len(rows) != size or min(rows) < 0 or sum(rows) != view.shape[0]:
            raise self.refusal(
                f"splits are {shorten(rows)}, and the tensor has {view.shape[0]} rows "
                f"for {size} ranks. Pass one number per rank, none negative, that add up to the "
                "rows."
            )
        return rows


def scale(
    request: Request,
    op: ReduceOp | int | None,
    average: bool | None,
    prescale_factor: float,
    postscale_factor: float,
) -> None:
    """Sets the operation and the factors of a reduction."""
    if average is not None:
        if op is not None:
            raise InvalidArgument(
                f"{request.kind} '{request.name}': both average={average} and op={op!r} are given. Pass op alone."
            )
        op = ReduceOp.AVERAGE if average else ReduceOp.SUM
    try:
        if type(op) is not ReduceOp:
            op = ReduceOp.AVERAGE if op is None else ReduceOp(op)
        request.op = op
    except ValueError:
        names = ", ".join(f"{each} ({each.value})" for each in ReduceOp)
        raise InvalidArgument(
            f"{request.kind} '{request.name}': op is {op!r}, which is no reduction. Known: {names}."
        ) from None
    try:
        request.prescale, request.postscale = float(prescale_factor), float(postscale_factor)
    except (TypeError, ValueError):
        raise InvalidArgument(
            f"{request.kind} '{request.name}': prescale_factor is {prescale_factor!r} and postscale_factor "
            f"{postscale_factor!r}. Pass numbers."
        ) from None


def empty_like(
    view: TensorView, tensor: Any, shape: tuple[int, ...] | None = None
) -> tuple[np.ndarray[Any, Any], TensorView]:
    """A new array of the shape of `view`, or another, and of the type of `tensor`, and its view."""
    shape = view.shape if shape is None else shape
    dtype = tensor.dtype if isinstance(tensor, np.ndarray) else numpy_dtype(view.dtype)
    array = np.empty(shape, dtype)
    return array, TensorView(address_of(array), shape, view.dtype, keepalive=array)


def as_type_of(tensor: Any) -> Callable[[Handle], Any]:
    """Gives the engine's output the NumPy type of `tensor`; matters for the types of ml_dtypes alone."""
    if not isinstance(tensor, np.ndarray) or tensor.dtype.isbuiltin != 2:
        return output_array
    dtype = tensor.dtype

    def finish(handle: Handle) -> Any:
        array = output_array(handle)
        return None if array is None else array.view(dtype)

    return finish


def shorten(values: Sequence[int]) -> str:
    """A list of numbers for messages."""
    if len(values) <= 16:
        return str(list(values))
    return f"[{', '.join(str(each) for each in values[:15])}, ... {values[-1]}]"
