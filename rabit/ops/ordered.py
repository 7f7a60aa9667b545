"""Ordered operations: blocking collectives without negotiation, for calls in one order everywhere.

The functions of `rabit` let every rank submit in its own order and first agree on one.  These do not:
they run at once on the calling thread and take about as long as the call of an MPI library.  In
return every rank of the process set must make the same ordered calls, in the same order, with the
same shapes, types and arguments.  One call runs at a time on each rank: threads that make ordered
calls in several process sets make them in one order over all of them.  Other operations may be in
flight meanwhile; the two kinds do not wait for each other.

Calls that differ between the ranks are never combined: they end in Mismatch, or in TimedOut after
`timeout` seconds.  Any failure of an ordered call ends the engine, because the ranks then no longer
agree about what is under way.  Ctrl-C is noticed when the call returns.

Arguments are NumPy arrays in row-major order, or anything with DLPack or a writable buffer.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rabit._native import ffi
from rabit.engine.current import engine_for_work
from rabit.engine.engine import Engine
from rabit.engine.process_set import ProcessSet, global_process_set, group_on
from rabit.engine.tensor import TensorView, dtype_of, view_input, view_output
from rabit.errors import InvalidArgument, Unsupported
from rabit.types import CPU, DType, Kind, ReduceOp

__all__ = [
    "ordered_allgather_into",
    "ordered_allreduce_",
    "ordered_alltoall_into",
    "ordered_barrier",
    "ordered_broadcast_",
    "ordered_reducescatter_into",
]

_TIMEOUT = 60.0
# Plain numbers: enumerations are slower to read and to compare than all else here.
_ALLREDUCE = int(Kind.ALLREDUCE)
_BROADCAST = int(Kind.BROADCAST)
_SUM = int(ReduceOp.SUM)
_codes: dict[Any, int] = {}  # of the types that arrays have had
_BYTES: Any = ffi.typeof("char[]")


class _Call:
    """The C form of a call.  What stays the same from one call to the next is not written again."""

    __slots__ = ("layout", "request", "source", "target")

    def __init__(self) -> None:
        self.request: Any = ffi.new("rabit_request*")
        self.request.struct_size = ffi.sizeof("rabit_request")
        self.request.prescale = self.request.postscale = 1.0
        self.request.backend = -1
        self.source, self.target = self.request.input, self.request.output
        self.source.device_kind = self.target.device_kind = 1
        self.layout: tuple[int, ...] = ()

    def set_layout(self, layout: tuple[int, ...]) -> None:
        """layout: kind, operation, root, group, code of the type, elements in and out."""
        request, source, target = self.request, self.source, self.target
        self.layout = ()  # Stays so if a value is refused.
        request.kind, request.reduce_op, request.root, request.group = layout[:4]
        source.dtype = target.dtype = layout[4]
        source.count, target.count = layout[5:]
        self.layout = layout


# Forms that no call uses.  A call takes one away: other threads, and a signal handler in the middle
# of the call, take others.
_idle: list[_Call] = []


def ordered_allreduce_(
    tensor: Any,
    op: ReduceOp = ReduceOp.AVERAGE,
    process_set: ProcessSet = global_process_set,
    *,
    timeout: float = _TIMEOUT,
    engine: Engine | None = None,
) -> Any:
    """Combines `tensor` of every rank element by element, in place, and returns it.

    Blocks.  Raises Mismatch or TimedOut where calls of the ranks differ, PeerLost if a rank died.
    """
    if engine is None:
        engine = engine_for_work()
    native = engine._native
    # A subclass of NumPy's array may mean more than its memory: view_output decides.
    is_plain = type(tensor) is np.ndarray or not isinstance(tensor, np.ndarray)
    if native.calls is not None and is_plain and process_set is global_process_set:
        status = native.calls.ordered_allreduce(tensor, op, timeout)
        if status is not False:  # Otherwise below it is said why, or it works.
            if status:
                native.fail(status)
            return tensor
    memory, count, code = _memory(tensor)
    _run(engine, _ALLREDUCE, process_set, timeout, memory, count, memory, count, code, op)
    return tensor


def ordered_broadcast_(
    tensor: Any,
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    *,
    timeout: float = _TIMEOUT,
    engine: Engine | None = None,
) -> Any:
    """Gives `tensor` the values that it has on global rank `root_rank`, and returns it.

    Blocks.  Raises Mismatch or TimedOut where calls of the ranks differ, PeerLost if a rank died.
    """
    memory, count, code = _memory(tensor)
    nothing = ffi.NULL
    _run(engine, _BROADCAST, process_set, timeout, nothing, 0, memory, count, code, root=root_rank)
    return tensor


def ordered_allgather_into(
    output: Any,
    tensor: Any,
    process_set: ProcessSet = global_process_set,
    *,
    timeout: float = _TIMEOUT,
    engine: Engine | None = None,
) -> Any:
    """Writes `tensor` of every rank into `output`, in rank order, and returns `output`.

    tensor: as many elements on every rank; output: that many for each rank.
    Blocks.  Raises Mismatch or TimedOut where calls of the ranks differ, PeerLost if a rank died.
    """
    return _into(output, tensor, Kind.ALLGATHER, process_set, timeout, engine)


def ordered_reducescatter_into(
    output: Any,
    tensor: Any,
    op: ReduceOp = ReduceOp.AVERAGE,
    process_set: ProcessSet = global_process_set,
    *,
    timeout: float = _TIMEOUT,
    engine: Engine | None = None,
) -> Any:
    """Combines `tensor` of every rank; writes this rank's part of the result into `output`.

    tensor: a part of as many elements as `output` for each rank, in rank order; not changed.
    Blocks.  Raises Mismatch or TimedOut where calls of the ranks differ, PeerLost if a rank died.
    """
    return _into(output, tensor, Kind.REDUCESCATTER, process_set, timeout, engine, op)


def ordered_alltoall_into(
    output: Any,
    tensor: Any,
    process_set: ProcessSet = global_process_set,
    *,
    timeout: float = _TIMEOUT,
    engine: Engine | None = None,
) -> Any:
    """Sends part i of `tensor` to the i-th rank; `output` gets a part from each, in rank order.

    tensor, output: as many elements; the parts are of equal size.
    Blocks.  Raises Mismatch or TimedOut where calls of the ranks differ, PeerLost if a rank died.
    """
    return _into(output, tensor, Kind.ALLTOALL, process_set, timeout, engine)


def ordered_barrier(
    process_set: ProcessSet = global_process_set,
    *,
    timeout: float = _TIMEOUT,
    engine: Engine | None = None,
) -> None:
    """Returns when every rank has called it."""
    nothing, code = ffi.NULL, DType.UINT8.value
    _run(engine, Kind.BARRIER, process_set, timeout, nothing, 0, nothing, 0, code)


def _into(
    output: Any,
    tensor: Any,
    kind: Kind,
    process_set: ProcessSet,
    timeout: float,
    engine: Engine | None,
    op: ReduceOp = ReduceOp.SUM,
) -> Any:
    target, target_count, target_code = _memory(output)
    source = _on_host(view_input(tensor, f"ordered {kind}"))
    if source.dtype.value != target_code:
        raise InvalidArgument(
            f"ordered {kind}: the input is {source.dtype} and the output "
            f"{DType(target_code)}. Both need one type."
        )
    pointer = ffi.cast("void*", source.data)
    count = source.count
    _run(engine, kind, process_set, timeout, pointer, count, target, target_count, target_code, op)
    return output


def _memory(tensor: Any) -> tuple[Any, int, int]:
    """Where `tensor` can be written, its elements and the code of its type."""
    if type(tensor) is np.ndarray:
        try:  # Refuses what is read-only or not contiguous.
            memory = ffi.from_buffer(_BYTES, tensor, True)
        except (ValueError, TypeError, BufferError):
            pass  # view_output says why, or knows a type that has no buffer.
        else:
            dtype = tensor.dtype
            code = _codes.get(dtype)
            if code is None:
                code = _codes[dtype] = dtype_of(dtype, "ordered call").value
            return memory, tensor.size, code
    view = _on_host(view_output(tensor, "ordered call"))
    return ffi.cast("void*", view.data), view.count, view.dtype.value


def _on_host(view: TensorView) -> TensorView:
    if view.device != CPU:
        raise Unsupported(
            "ordered call: the tensor is not in the memory of the CPU. Copy it there first, or make "
            "the call that is negotiated, which takes tensors of CUDA."
        )
    return view


def _run(
    engine: Engine | None,
    kind: int,
    process_set: ProcessSet,
    timeout: float,
    source: Any,
    source_count: int,
    target: Any,
    target_count: int,
    code: int,
    op: int = _SUM,
    root: int = -1,
) -> None:
    if engine is None:
        engine = engine_for_work()
    group = 0 if process_set is global_process_set else group_on(process_set, engine)
    try:
        call = _idle.pop()
    except IndexError:
        call = _Call()
    layout = (kind, op, root, group, code, source_count, target_count)
    if layout != call.layout:
        call.set_layout(layout)
    call.source.data, call.target.data = source, target
    native = engine._native
    status = native.run_ordered(native.work_pointer, call.request, int(timeout * 1000))
    if status:
        native.fail(status)
    _idle.append(call)
