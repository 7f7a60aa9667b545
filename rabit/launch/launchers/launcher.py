"""Launchers: who starts the processes of a job, and what each of them cannot do.

A launcher is a module of this folder with the members of `Launcher`, and a row of `LAUNCHERS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast

from rabit.errors import InvalidArgument

if TYPE_CHECKING:  # The command line has the table alone.
    from rabit.launch.job import Job
    from rabit.launch.outcome import Outcome

__all__ = ["LAUNCHERS", "Launcher", "find_launcher"]

# By the word after --launcher: its module, and who starts the ranks, for the user.
LAUNCHERS: Mapping[str, tuple[str, str]] = {
    "rabit": ("rabit.launch.launchers.ssh", "rabitrun itself, over ssh on other hosts"),
    "srun": ("rabit.launch.launchers.srun", "rabitrun itself, over srun on other hosts of a job of Slurm"),
    "mpi": ("rabit.launch.launchers.mpi", "the mpiexec of the MPI library, which the backend mpi needs"),
}


class Launcher(Protocol):
    """What starts a job.  LACKS: by key of `_ASKED`, why it cannot do that, and what to do instead."""

    LACKS: Mapping[str, str]

    def describe(self, job: Job) -> str:
        """What would be started, as text.  Starts nothing."""

    def run(self, job: Job) -> Outcome:
        """Runs the job to its end.  Blocks.  Raises RabitError if it cannot be started at all."""


# What not every launcher can do, and whether a job asks for it.
_ASKED: Mapping[str, Callable[[Job], bool]] = {
    "restarts": lambda job: job.max_restarts > 0,
    "servers": lambda job: job.plan.servers > 0,
    "elastic": lambda job: job.elastic is not None,
    "output": lambda job: job.output_folder is not None or job.is_collapsed or job.payload is not None,
    "bind-to core": lambda job: job.bind_to == "core",
    "mpi-args": lambda job: bool(job.mpi_arguments),
}


def find_launcher(name: str, job: Job) -> Launcher:
    """The launcher of this name.  Raises InvalidArgument if `job` asks for what it lacks."""
    launcher = cast(Launcher, import_module(LAUNCHERS[name][0]))
    for asked, is_asked in _ASKED.items():
        if asked in launcher.LACKS and is_asked(job):
            raise InvalidArgument(launcher.LACKS[asked])
    return launcher
