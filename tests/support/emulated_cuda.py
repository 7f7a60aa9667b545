"""The emulated CUDA driver (native/testing/emulated_cuda) in this process, under the driver's name.

It is built once, by the compiler that native code needs anyway.  Its shared object calls itself
libcuda.so.1: once it is loaded, whoever opens the driver by that name gets it.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
NATIVE = ROOT / "native"
SOURCES = [
    NATIVE / "testing" / "emulated_cuda" / "emulated_cuda.cc",
    NATIVE / "testing" / "emulated_cuda" / "emulated_cuda.h",
    NATIVE / "base" / "device" / "cuda_functions.h",
]
COMPILER = os.environ.get("CXX") or next(filter(shutil.which, ("c++", "g++", "clang++")), "")

# Why it cannot be built here; empty: it can.
MISSING = "" if COMPILER else "no C++ compiler to build the emulated CUDA driver with"


def build() -> Path:
    """The emulated driver, built from the sources as they are now."""
    return build_library("cuda", "libcuda.so.1", SOURCES)


def build_library(name: str, soname: str, sources: list[Path]) -> Path:
    """A shared object of the first source, built when one of them is newer than what there is."""
    stamp = max(each.stat().st_mtime_ns for each in sources)
    folder = ROOT / "build" / f"emulated_{name}"
    library = folder / f"lib{name}_{stamp}.so"
    if library.exists():
        return library
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        made = Path(scratch) / library.name
        command = [COMPILER, "-std=c++20", "-O1", "-fPIC", "-shared", f"-I{NATIVE}", "-pthread"]
        command += [f"-Wl,-soname,{soname}", "-o", str(made), str(sources[0]), "-ldl"]
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
        made.rename(library)  # Another process may build it as well.
    return library


class Driver:
    """What tests ask of the emulation; see emulated_cuda.h."""

    def __init__(self, path: str | Path) -> None:
        self.library = library = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
        library.rabit_emulated_allocate.restype = ctypes.c_uint64
        library.rabit_emulated_allocate.argtypes = (ctypes.c_int32, ctypes.c_size_t)
        library.rabit_emulated_free.argtypes = (ctypes.c_uint64,)
        library.rabit_emulated_inside.restype = ctypes.c_void_p
        library.rabit_emulated_inside.argtypes = (ctypes.c_uint64,)
        library.rabit_emulated_fail.argtypes = (ctypes.c_char_p, ctypes.c_uint64, ctypes.c_int32)
        library.rabit_emulated_calls.restype = ctypes.c_uint64
        library.rabit_emulated_finish.argtypes = (ctypes.c_int32, ctypes.c_void_p)
        library.rabit_emulated_delays.argtypes = (ctypes.c_uint64, ctypes.c_uint32)
        self._kernels: list[object] = []

    def allocate(self, device: int, size: int) -> tuple[int, int]:
        """Memory of a device: its address, which nobody here may touch, and where kernels see it."""
        address = self.library.rabit_emulated_allocate(device, max(size, 1))
        assert address, "no memory of a device"
        return address, self.library.rabit_emulated_inside(address)

    def free(self, address: int) -> None:
        self.library.rabit_emulated_free(address)

    def launch(self, device: int, kernel: object, stream: int = 0) -> None:
        """Puts the call of `kernel()` on a stream."""
        made = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: kernel())  # type: ignore[operator]
        self._kernels.append(made)
        self.library.rabit_emulated_launch(
            ctypes.c_int32(device), ctypes.c_void_p(stream), made, ctypes.c_void_p(0)
        )

    def finish(self, device: int, stream: int = 0) -> None:
        """Waits until everything on the stream is done."""
        self.library.rabit_emulated_finish(device, stream)

    def fail(self, function: str, error: int, skip: int = 0) -> None:
        """Has the call of `function` after `skip` more give `error`; 0 calls it off."""
        self.library.rabit_emulated_fail(function.encode(), skip, error)

    def calls(self, function: str) -> int:
        """How often `function` has been called."""
        return int(self.library.rabit_emulated_calls(function.encode()))

    def push_device(self, index: int) -> None:
        """Makes a device current in this thread, for calls of the driver's own functions."""
        assert self.library.cuInit(0) == 0
        assert self.library.cuCtxPushCurrent_v2(ctypes.c_void_p(0x1000 + index)) == 0

    def hold(self, is_held: bool) -> None:
        """While it is true, copies to a device do not begin."""
        self.library.rabit_emulated_hold(ctypes.c_int32(is_held))

    def capture(self, is_capturing: bool) -> None:
        """What streams answer who asks whether they capture a graph."""
        self.library.rabit_emulated_capture(ctypes.c_int32(is_capturing))
