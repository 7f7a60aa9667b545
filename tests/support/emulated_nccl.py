"""The emulated NCCL (native/testing/emulated_nccl), over the emulated CUDA driver of the process."""

from __future__ import annotations

from pathlib import Path

from support.emulated_cuda import NATIVE, build_library

FOLDER = NATIVE / "testing" / "emulated_nccl"
SOURCES = [
    FOLDER / "emulated_nccl.cc",
    FOLDER / "bootstrap.h",
    FOLDER / "described.h",
    FOLDER / "emulated_nccl.h",
    FOLDER / "kernels.h",
    FOLDER / "library.h",
    FOLDER / "numbers.h",
    FOLDER / "pipes.h",
    NATIVE / "backend" / "nccl" / "nccl_functions.h",
    NATIVE / "testing" / "emulated_cuda" / "emulated_cuda.h",
]


def build() -> Path:
    """The emulated NCCL, built from the sources as they are now."""
    return build_library("nccl", "libnccl.so.2", SOURCES)
