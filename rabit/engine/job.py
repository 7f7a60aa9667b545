"""Job: requests that another runtime's dependency engine submits when their operands are ready."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rabit._native import check, ffi
from rabit.engine.batch import Batch

if TYPE_CHECKING:
    from rabit.engine.native_engine import NativeEngine
    from rabit.engine.request import Request

__all__ = ["Job", "JobRuntime"]


class JobRuntime:
    """C functions of a runtime with a dependency engine, by address; rabit_job_runtime describes them.

    place: what its push is given to say where an operation runs; must stay as long as the runtime.
    """

    __slots__ = ("table",)

    def __init__(self, *, address: int, release: int, push: int, place: int) -> None:
        self.table = ffi.new("rabit_job_runtime*")
        for name, value in (("address", address), ("release", release), ("push", push)):
            setattr(self.table, name, ffi.cast(ffi.typeof(getattr(self.table, name)), value))
        self.table.place = ffi.cast("void*", place)


class Job:
    """Addresses for a runtime such as MXNet's engine; rabit_abi.h describes the three functions.

    parameter: what to pass to `run` and, once, to `release`.
    run: void (void* context, void* completion, void* job).
    release: void (void* job).
    The runtime owns the job from the moment it has been given it.
    """

    __slots__ = ("parameter", "release", "run")

    def __init__(self, native: NativeEngine, requests: Sequence[Request], runtime: JobRuntime) -> None:
        """requests: with operands of the runtime where a TensorView has its address; the job frees them."""
        library = native.library
        batch = Batch(native, requests)
        slot = ffi.new("rabit_job**")
        code = library.rabit_job_create(
            native.open_pointer(),
            batch.structs,
            len(batch),
            runtime.table,
            slot,
        )
        check(library, code)
        self.parameter = _number(slot[0])
        self.run = _number(ffi.addressof(library, "rabit_job_run"))
        self.release = _number(ffi.addressof(library, "rabit_job_release"))


def _number(pointer: Any) -> int:
    return int(ffi.cast("uintptr_t", pointer))
