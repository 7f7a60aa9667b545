"""The functions of MXNet's C library that rabit uses, through a table of our own."""

from __future__ import annotations

from typing import Any

import cffi

from rabit import Internal, Unsupported
from rabit_mxnet.loaded import mx

ffi = cffi.FFI()
ffi.cdef(
    """
    const char* MXGetLastError();
    int MXGetEnv(const char* name, const char** value);
    int MXSetEnv(const char* name, const char* value);
    int MXNDArrayWaitToWrite(void* array);
    int MXNDArrayGetData(void* array, void** data);
    int MXNDArrayFree(void* array);
    int MXShallowCopyNDArray(void* array, void** copy);
    int MXEnginePushAsyncND(void (*function)(void*, void*, void*), void* parameter,
                            void (*deleter)(void*), const void* context,
                            void** reads, int reads_count, void** writes, int writes_count,
                            const void* property, int priority, const char* name, _Bool wait);
    """
)
library: Any = ffi.dlopen(mx.base._LIB._name)


def handle_of(tensor: Any) -> Any:
    """The C handle of an array; valid while the array lives."""
    return ffi.cast("void*", tensor.handle.value)


def check(status: int, what: str) -> None:
    """Raises Internal with MXNet's own words if `status` is not 0."""
    if status:
        text = ffi.string(library.MXGetLastError()).decode("utf-8", "replace")
        raise Internal(f"{what}: MXNet's library refused: {text}")


def address(tensor: Any) -> int:
    """Where the elements lie.  The array must have been waited for."""
    slot = ffi.new("void**")
    check(library.MXNDArrayGetData(handle_of(tensor), slot), "the address of an array")
    return int(ffi.cast("uintptr_t", slot[0]))


def wait_to_write(tensor: Any) -> None:
    """Waits until no operation of MXNet reads or writes the array; raises what went wrong."""
    mx.base.check_call(library.MXNDArrayWaitToWrite(handle_of(tensor)))


def has_engine_functions() -> bool:
    """True if operations can join MXNet's dependency engine."""
    needed = ("MXEnginePushAsyncND", "MXShallowCopyNDArray", "MXNDArrayGetData", "MXNDArrayFree")
    return all(_exists(name) for name in needed)


def _exists(name: str) -> bool:
    try:
        getattr(library, name)
    except AttributeError:
        return False
    return True


def mxnet_setting(name: str) -> str | None:
    """What MXNet sees as the value of one of its own variables."""
    slot = ffi.new("const char**")
    check(library.MXGetEnv(name.encode(), slot), f"the setting {name}")
    return None if slot[0] == ffi.NULL else ffi.string(slot[0]).decode("utf-8", "replace")


def set_mxnet_setting(name: str, value: str) -> None:
    """Sets one of MXNet's own variables, in this process."""
    check(library.MXSetEnv(name.encode(), value.encode()), f"the setting {name}")


def check_version() -> None:
    """Raises Unsupported for an MXNet whose arrays have another C interface."""
    if int(mx.__version__.split(".")[0]) != 1:
        raise Unsupported(
            f"rabit_mxnet works with MXNet 1.x, and {mx.__version__} is installed. "
            "Install mxnet==1.9.1."
        )
