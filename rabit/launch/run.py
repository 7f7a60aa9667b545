"""rabit.run: a Python function as the program of every rank."""

from __future__ import annotations

import operator
import os
import pickle
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rabit.config.config import process_environment
from rabit.errors import InvalidArgument, RabitError
from rabit.printable import printable_lines

if TYPE_CHECKING:
    import argparse

__all__ = ["RunFailed", "run"]

T = TypeVar("T")


class RunFailed(RabitError):
    """A rank of `run` failed.  `status` is what rabitrun would exit with; the text is its report, of several lines."""

    def __init__(self, message: str = "", rank: int = -1, status: int = 1) -> None:
        super().__init__("", rank)
        self.args = (printable_lines(message),)
        self.status = status


def run(
    func: Callable[..., T],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    slots: int | None = None,
    reset_limit: int | None = None,
    cooldown_range: Sequence[int] | None = None,
    hosts: str | None = None,
    hostfile: str | Path | None = None,
    host_discovery_script: str | None = None,
    start_timeout: float | None = None,
    ssh_port: int | None = None,
    ssh_identity_file: str | Path | None = None,
    disable_cache: bool | None = None,
    output_filename: str | Path | None = None,
    verbose: bool | int | None = None,
    use_gloo: bool | None = None,
    use_mpi: bool | None = None,
    mpi_args: str | None = None,
    network_interface: str | None = None,
    network_interfaces: str | None = None,
    executable: str | None = None,
    np: int | None = None,
    min_np: int | None = None,
    max_np: int | None = None,
    *,
    env: Mapping[str, str] | None = None,
    grace_time: float = 5.0,
    ssh_options: Sequence[str] = (),
) -> list[T]:
    """Calls `func(*args, **kwargs)` in `num_proc` new processes (1); returns the results by rank.

    func: any function, of a notebook as well.  It calls rabit.init() itself.  What it returns
    must be something that cloudpickle takes; classes of the caller's __main__ are the same ones.
    hosts, hostfile, ssh_port, ssh_identity_file, ssh_options, output_filename, verbose: as for rabitrun;
    without hosts all ranks run on this machine.
    start_timeout: seconds, 30.  grace_time: seconds that ranks get to end once one has failed.
    env: variables for the ranks, on top of this process's.  executable: Python on the other hosts.
    np, network_interface: older names of num_proc and network_interfaces.
    The positional arguments are those of horovod.run.  Refused are those of elastic jobs (slots,
    min_num_proc, max_num_proc, min_np, max_np, reset_limit, cooldown_range, host_discovery_script)
    and of MPI (use_mpi, mpi_args); disable_cache and use_gloo change nothing.
    Blocks until every rank has ended.  What ranks print appears as with rabitrun.
    Raises RunFailed with the report about the cause if a rank fails, and KeyboardInterrupt if that stops the job.
    """
    given = dict(locals())
    _check(given)
    results: list[T] = _run(given)
    return results


_ELASTIC = (
    "jobs of run() have a fixed number of ranks, since each of them returns a result. Start an elastic "
    "job with rabitrun --min-np, or call run() again with num_proc after a failure"
)
_MPI = (
    "run() starts ranks itself. Use 'rabitrun --launcher mpi' and a script, or backend='mpi' under mpirun"
)
_REFUSED = {
    **dict.fromkeys(("min_num_proc", "max_num_proc", "min_np", "max_np", "slots"), _ELASTIC),
    **dict.fromkeys(("reset_limit", "cooldown_range", "host_discovery_script"), _ELASTIC),
    **dict.fromkeys(("use_mpi", "mpi_args"), _MPI),
}
# Argument -> the flag of rabitrun that it is, as the parser calls it; the later of two names is an older one.
_FLAGS = {
    "num_proc": "np", "np": "np", "hosts": "hosts", "hostfile": "hostfile",
    "start_timeout": "start_s", "grace_time": "grace_s", "verbose": "is_verbose",
    "output_filename": "output_folder", "ssh_port": "ssh_port", "ssh_options": "ssh_option",
    "ssh_identity_file": "ssh_identity_file", "executable": "remote_python",
    "network_interfaces": "setting_network_interfaces",
    "network_interface": "setting_network_interfaces",
}  # fmt: skip
_PATHS = ("hostfile", "output_folder", "ssh_identity_file")
_ONE_OF = (("num_proc", "np"), ("network_interfaces", "network_interface"), ("hosts", "hostfile"))


def _check(given: Mapping[str, Any]) -> None:
    """Raises InvalidArgument for what cannot be done."""
    from rabit.launch.options.environment import check_variable

    for name, why in _REFUSED.items():
        if given[name] not in (None, False):
            raise InvalidArgument(f"run() got {name}={given[name]!r}: {why}.")
    for name, other in _ONE_OF:
        if given[name] is not None and given[other] is not None:
            raise InvalidArgument(f"run() got both {name} and {other}. Give one of them.")
    if not callable(given["func"]):
        raise InvalidArgument(
            f"run() got func={given['func']!r}, which cannot be called. Pass a function, and its "
            "arguments in args and kwargs."
        )
    for name, value in dict(given["env"] or {}).items():
        check_variable(
            name, value, f"run() got env with {name!r}, which cannot be set", 'env={"NAME": "VALUE"}'
        )


def _command_line(given: Mapping[str, Any]) -> argparse.Namespace:
    """What rabitrun would have parsed."""
    from rabit.launch.options.flags import make_parser

    parsed = make_parser().parse_args([])
    parsed.np = 1
    # It starts no servers, whatever a job around this one has.
    parsed.setting_servers = "0"
    parsed.env = [f"{name}={value}" for name, value in dict(given["env"] or {}).items()]
    for name, flag in _FLAGS.items():
        if given[name] is not None:
            setattr(parsed, flag, Path(given[name]) if flag in _PATHS and given[name] else given[name])
    try:
        parsed.np = operator.index(parsed.np)
    except TypeError:
        raise InvalidArgument(
            f"run() got num_proc={parsed.np!r}: the number of ranks is an integer. Pass one."
        ) from None
    return parsed


def _run(given: Mapping[str, Any]) -> Any:
    from rabit.launch.launchers import ssh
    from rabit.launch.options.assembly import job_of

    payload = _pickled((given["func"], tuple(given["args"]), dict(given["kwargs"] or {})))
    environ = {**process_environment(), "PYTHONPATH": _python_path()}
    job = job_of(_command_line(given), environ, payload=payload)
    outcome = ssh.run(job)
    if outcome.status:
        if not outcome.has_failed and outcome.status == 128 + signal.SIGINT:
            raise KeyboardInterrupt
        raise RunFailed(outcome.report or "the job was stopped by a signal", -1, outcome.status)
    return [_unpickled(outcome.results.get(rank, b""), rank) for rank in range(job.plan.size)]


def _python_path() -> str:
    """Where this process finds modules, so that ranks find the module of the function."""
    from rabit.launch.program import working_directory

    here = [each or working_directory() for each in sys.path]
    return os.pathsep.join(each for each in here if Path(each).exists())


def _pickled(call: Any) -> bytes:
    from rabit.launch.sent_code import pickled

    try:
        return pickled(call)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise InvalidArgument(
            f"run() cannot send the function to other processes: {error}. Open files, locks, "
            "connections and the like inside the function, not before it."
        ) from error


def _unpickled(data: bytes, rank: int) -> Any:
    # It comes from our own child, through a pipe or an ssh connection that nobody else can open.
    if not data:
        raise RunFailed(
            f"rank {rank} ended with status 0 and gave no result: the function ended the process. "
            "Let it return instead of calling exit().",
            rank,
        )
    return pickle.loads(data)
