"""Job: requests that another runtime's dependency engine submits when their operands are ready."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rabit._native import check, ffi
from rabit.engine.request import Batch, Request

if TYPE_CHECKING:
    from rabit.engine.native_engine import NativeEngine

__all__ = ["Job"]


class Job:
    """Addresses for a runtime such as MXNet's engine; rabit_abi.h describes the three functions.

    parameter: what to pass to `run` and, once, to `release`.
    run: void (void* context, void* completion, void* job).
    release: void (void* job).
    The runtime owns the job from the moment it has been given it.
    """

    __slots__ = ("parameter", "release", "run")

    def __init__(
        self, native: NativeEngine, requests: Sequence[Request], address: int, release: int
    ) -> None:
        """requests: with operands of the runtime where a TensorView has its address.

        address, release: C functions of the runtime, for its operands; the job frees them.
        """
        library = native.library
        batch = Batch(native, requests)
        slot = ffi.new("rabit_job**")
        code = library.rabit_job_create(
            native.open_pointer(),
            batch.structs,
            len(batch),
            ffi.cast("int (*)(void*, void**)", address),
            ffi.cast("int (*)(void*)", release),
            slot,
        )
        check(library, code)
        self.parameter = _number(slot[0])
        self.run = _number(ffi.addressof(library, "rabit_job_run"))
        self.release = _number(ffi.addressof(library, "rabit_job_release"))


def _number(pointer: Any) -> int:
    return int(ffi.cast("uintptr_t", pointer))
