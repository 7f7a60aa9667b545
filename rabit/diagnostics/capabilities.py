"""What this installation can do, under Horovod's names; the answers are true for this machine."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from typing import Any

from rabit._native import capabilities, nccl_library
from rabit.engine.current import current_engine
from rabit.engine.nccl import library_path
from rabit.errors import InvalidArgument

__all__ = [
    "capabilities",
    "ccl_built",
    "cuda_built",
    "ddl_built",
    "gloo_built",
    "gloo_enabled",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rocm_built",
    "start_timeline",
    "statistics",
    "stop_timeline",
    "summary",
]


def _has_backend(name: str) -> bool:
    return any(
        (each.get("name") if isinstance(each, dict) else each) == name
        and not (isinstance(each, dict) and each.get("available") is False)
        for each in capabilities().get("backends", ())
    )


def mpi_built() -> bool:
    """True if the MPI backend is part of this build."""
    return _has_backend("mpi")


def mpi_enabled() -> bool:
    """True if the MPI backend can be used: it is built and mpi4py is installed."""
    return mpi_built() and importlib.util.find_spec("mpi4py") is not None


def mpi_threads_supported() -> bool:
    """True if MPI has been initialised in this process, and lets several threads call it."""
    # Asking must not load MPI: that fails where mpi4py is installed without a library.
    mpi = sys.modules.get("mpi4py.MPI")
    return bool(mpi and mpi.Is_initialized() and mpi.Query_thread() == mpi.THREAD_MULTIPLE)


def gloo_built() -> bool:
    """False: rabit has transports of its own and contains no gloo."""
    return False


def gloo_enabled() -> bool:
    """False: rabit has transports of its own and contains no gloo."""
    return False


def nccl_built() -> int:
    """The version of the NCCL that the backend would load, as NCCL writes it: 22703 is 2.27.3.  0: there is none.

    Loads the library; starts no device.
    """
    found = nccl_library(library_path()) if _has_backend("nccl") else {}
    parts = (found.get("version") or "0").split(".")
    code = 0
    for part in (*parts, "0", "0")[:3]:
        code = 100 * code + int(part)
    return code


def cuda_built() -> bool:
    """True: tensors in CUDA memory travel, where NVIDIA's driver is."""
    return True


def ccl_built() -> bool:
    """False: there is no oneCCL backend."""
    return False


def ddl_built() -> bool:
    """False: there is no DDL backend."""
    return False


def rocm_built() -> bool:
    """False: there is no ROCm backend."""
    return False


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Rank 0 writes a trace of its operations to `file_path`, in Chrome's format.

    With "{rank}" in the path every rank does.  Ends with `stop_timeline` or `shutdown`.
    """
    engine = current_engine()
    if engine.rank == 0 or "{rank}" in str(file_path):
        engine.start_timeline(str(file_path).replace("{rank}", str(engine.rank)), mark_cycles)


def stop_timeline() -> None:
    """Ends the trace; the file is complete.  Does nothing if none is being written."""
    with contextlib.suppress(InvalidArgument):  # None is open: on most ranks none ever is.
        current_engine().stop_timeline()


def statistics() -> dict[str, Any]:
    """A snapshot of what the engine of this rank has done, as one document."""
    return current_engine().statistics()


def summary() -> str:
    """Four lines about what the engine of this rank has done, and who was waited for."""
    from rabit.diagnostics.summary import summary_text

    return summary_text(current_engine().statistics())
