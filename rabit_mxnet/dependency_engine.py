"""Operations in MXNet's own dependency engine.

MXNet runs an operation when the arrays that it reads and writes are ready, and whoever needs the
result waits for the operation alone: communication overlaps with the backward pass, with the
update of other parameters and with the next forward pass.  MXNet's threads call the engine's C
functions; Python is not entered.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import rabit
from rabit import Kind, Request
from rabit_mxnet.arrays import symbolic_view
from rabit_mxnet.library import check, ffi, handle_of, has_engine_functions, library, mxnet_setting
from rabit_mxnet.loaded import mx
from rabit_mxnet.operation import Operation

# Values of mxnet::Context and mxnet::FnProperty: cpu(0), and the workers that compute uses as well.
# MXNet notes errors in a list without a lock, where an operation starts and where it ends: what may
# meet one starts and ends on the thread where MXNet's own operations do.
_CPU = ffi.new("int32_t[2]", [1, 0])
_NORMAL = ffi.new("int*", 0)
_NAMES = {kind: ffi.new("char[]", f"rabit_{kind}".encode()) for kind in Kind}
# Versions whose completion object is known to be the three pointers of rabit_job_run.
_KNOWN_VERSION = "1.9."

# Jobs refer to their engine until MXNet has finished them.
_engines: set[rabit.Engine] = set()


@functools.cache
def is_usable() -> bool:
    """True if operations can join MXNet's engine; otherwise warns once, and callers wait instead."""
    reason = _reason_against()
    if reason is None:
        _register_errors()
        return True
    warnings.warn(
        f"rabit_mxnet waits for every operation instead of overlapping it: {reason}", stacklevel=4
    )
    return False


def _reason_against() -> str | None:
    if not mx.__version__.startswith(_KNOWN_VERSION):
        return f"MXNet is {mx.__version__}, and the engine interface of {_KNOWN_VERSION}x is known"
    if not has_engine_functions():
        return "MXNet's library does not export MXEnginePushAsyncND"
    if mxnet_setting("MXNET_ENGINE_TYPE") == "NaiveEngine":
        return "MXNET_ENGINE_TYPE is NaiveEngine, which runs one operation at a time"
    return None


def _register_errors() -> None:
    """MXNet raises what its engine reports by the class that the text begins with, which it leaves in the text."""
    for each in (
        rabit.InvalidArgument,
        rabit.Mismatch,
        rabit.Unsupported,
        rabit.PeerLost,
        rabit.TimedOut,
        rabit.Aborted,
        rabit.ResourceExhausted,
        rabit.Internal,
    ):
        mx.base.register_error(each.__name__, functools.partial(_error_of, each))


def _error_of(kind: type[rabit.RabitError], text: str) -> rabit.RabitError:
    return kind(text.removeprefix(f"{kind.__name__}: "))


def push(operations: Sequence[Operation], priority: int) -> None:
    """Hands operations to MXNet's engine, which starts them together.  Returns at once.

    An error is raised where MXNet is next asked for one of the targets.
    """
    engine = rabit.default_engine()
    _engines.add(engine)
    copies: dict[int, Any] = {}
    requests = [_request(operation, priority, copies) for operation in operations]
    job = engine.make_job(requests, _runtime())
    sources = [operation.source for operation in operations if operation.source is not operation.target]
    reads = ffi.new("void*[]", [handle_of(source) for source in sources])
    writes = ffi.new("void*[]", [handle_of(operation.target) for operation in operations])
    status = library.MXEnginePushAsyncND(
        ffi.cast("void (*)(void*, void*, void*)", job.run),
        ffi.cast("void*", job.parameter),
        ffi.cast("void (*)(void*)", job.release),
        _CPU,
        reads,
        len(reads),
        writes,
        len(writes),
        _NORMAL,
        priority,
        _NAMES[operations[0].request.kind],
        False,
    )
    check(status, operations[0].what)


def _request(operation: Operation, priority: int, copies: dict[int, Any]) -> Request:
    target = symbolic_view(operation.target, operation.what)
    target.data = _handle_copy(operation.target, copies)
    source = symbolic_view(operation.source, operation.what)
    source.data = _handle_copy(operation.source, copies)
    return replace(operation.request, input=source, output=target, priority=priority)


def _handle_copy(tensor: Any, copies: dict[int, Any]) -> int:
    """A handle on the same array for the job, since the Python object may go before it runs."""
    if id(tensor) not in copies:
        slot = ffi.new("void**")
        check(library.MXShallowCopyNDArray(handle_of(tensor), slot), "a handle for an operation")
        copies[id(tensor)] = int(ffi.cast("uintptr_t", slot[0]))
    return int(copies[id(tensor)])


@functools.cache
def _runtime() -> rabit.JobRuntime:
    return rabit.JobRuntime(
        address=_number(ffi.addressof(library, "MXNDArrayGetData")),
        release=_number(ffi.addressof(library, "MXNDArrayFree")),
        push=_number(ffi.addressof(library, "MXEnginePushAsyncND")),
        place=_number(_CPU),
    )


def _number(pointer: Any) -> int:
    return int(ffi.cast("uintptr_t", pointer))


def forget_engines() -> None:
    """Call when MXNet has finished everything."""
    _engines.clear()
