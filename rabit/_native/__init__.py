"""The native library: finding it, loading it, and turning its codes into exceptions."""

from __future__ import annotations

import functools
import importlib.machinery
import importlib.util
import os
import sys
from types import ModuleType
from typing import Any

from rabit.errors import Internal, RabitError, Unsupported, error_from_code
from rabit.version import __version__

__all__ = [
    "abi_version",
    "address_of_pointer",
    "capabilities",
    "check",
    "cuda_driver",
    "ffi",
    "last_error",
    "library_path",
    "load",
    "load_calls",
    "nccl_library",
    "read_json",
]

_CALLS_SUFFIX = ".abi3.so"
_HERE = os.path.dirname(__file__)


def _find_ffi() -> Any:
    try:
        import rabit._native._abi as _abi
    except ImportError:  # A source tree: only the build of a wheel writes the module.
        from pathlib import Path

        from rabit._native.build_cffi import make_ffi

        here = Path(_HERE)
        headers = (here, here.parent.parent / "native" / "include")
        found = (each / "rabit_abi.h" for each in headers if (each / "rabit_abi.h").exists())
        header = next(found, None)
        if header is None:
            raise Internal(
                f"the installation is incomplete: {_HERE} holds neither _abi.py nor rabit_abi.h. "
                "Install mariza-rabit again."
            ) from None
        return make_ffi(header)
    return _abi.ffi


ffi: Any = _find_ffi()


def library_path() -> str:
    """The native library that is loaded by default: RABIT_LIBRARY, else the installed one."""
    from rabit.config.config import process_environment

    named = process_environment().get("RABIT_LIBRARY", "")
    if named:
        return named
    # In a source tree the library is that of the installed package.
    folders = [_HERE, *(os.path.join(folder, "rabit", "_native") for folder in sys.path)]
    files = [os.path.join(folder, "librabit.so") for folder in folders]
    return next(filter(os.path.exists, files), files[0])


def load(path: str = "") -> Any:
    """The native library at `path`; empty: the default one.  Loaded once."""
    return _load(path or library_path())


def abi_version() -> int:
    """The ABI version of the default library."""
    return int(load().rabit_abi_version())


@functools.cache
def _load(path: str) -> Any:
    try:
        library = ffi.dlopen(path, ffi.RTLD_NOW | ffi.RTLD_LOCAL)
    except OSError as error:
        raise Unsupported(
            f"the native library {path} cannot be loaded: {error}. Install the package with "
            "'pip install .', or point RABIT_LIBRARY at a built librabit.so."
        ) from error
    found, wanted = library.rabit_abi_version(), library.RABIT_ABI_VERSION
    if found != wanted:
        raise Unsupported(
            f"the native library {path} has ABI version {found}, this package needs {wanted}. "
            "Build both from the same source."
        )
    return library


@functools.cache
def load_calls(path: str = "") -> ModuleType | None:
    """The extension module with the quickest calls (native/python), from the folder of the library `path`.

    None where it was not built, or where Python takes no modules of the limited API (PyPy, builds
    without the global lock): cffi makes the same calls then.
    """
    folder = os.path.dirname(path or library_path())
    file = os.path.join(folder, f"rabit_calls{_CALLS_SUFFIX}")
    if _CALLS_SUFFIX not in importlib.machinery.EXTENSION_SUFFIXES or not os.path.exists(file):
        return None
    loader = importlib.machinery.ExtensionFileLoader("rabit_calls", file)
    spec = importlib.util.spec_from_loader("rabit_calls", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    wanted = load(path).RABIT_ABI_VERSION
    if wanted != module.ABI_VERSION:
        raise Unsupported(
            f"{file} has ABI version {module.ABI_VERSION}, this package needs {wanted}. Build both "
            "from the same source."
        )
    return module


def address_of_pointer(pointer: Any) -> int:
    """The number that a C pointer is."""
    return int(ffi.cast("uintptr_t", pointer))


def last_error(library: Any, code: int) -> RabitError:
    """The exception for the failed call that this thread made last."""
    message = ffi.string(library.rabit_last_error()).decode("utf-8", "replace")
    return error_from_code(code, message, library.rabit_last_culprit())


def check(library: Any, code: int) -> None:
    """Raises unless `code` is RABIT_OK.  Call it right after the call that returned `code`."""
    if code:
        raise last_error(library, code)


def read_json(library: Any, function: Any, *arguments: Any) -> dict[str, Any]:
    """The document that function(*arguments, buffer, capacity, needed) writes."""
    import json  # Engines start without documents.

    needed = ffi.new("size_t*")
    capacity = 1 << 16
    while True:
        buffer = ffi.new("char[]", capacity)
        check(library, function(*arguments, buffer, capacity, needed))
        if needed[0] <= capacity:
            document = json.loads(ffi.string(buffer).decode("utf-8"))
            assert isinstance(document, dict)
            return document
        capacity = needed[0] + 4096  # The document may grow between two calls.


def cuda_driver() -> dict[str, Any]:
    """The driver of CUDA tensors: library, version and devices; or "unavailable", why there is none.

    Starts it: a child that this process forks afterwards cannot use CUDA.
    """
    library = load()
    return read_json(library, library.rabit_describe_cuda)


def nccl_library(path: str = "") -> dict[str, Any]:
    """NCCL at `path`: library and version; or "unavailable", why there is none.

    "": the one that the process has loaded, or that the loader finds.  Starts no device.
    """
    library = load()
    return read_json(library, library.rabit_describe_nccl, path.encode())


def capabilities() -> dict[str, Any]:
    """What this build and machine offer: version, kernels, transports, backends, codecs."""
    library = load()
    return {"version": __version__, **read_json(library, library.rabit_capabilities)}
