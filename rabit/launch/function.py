"""rabit.run: a Python function as the program of every rank."""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from rabit._config import process_environment
from rabit._errors import InvalidArgument, RabitError

__all__ = ["RunFailed", "run"]

T = TypeVar("T")


class RunFailed(RabitError):
    """A rank of `run` failed.  `status` is what rabitrun would exit with."""

    def __init__(self, message: str = "", rank: int = -1, status: int = 1) -> None:
        super().__init__(message, rank)
        self.status = status


def run(
    func: Callable[..., T],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int = 1,
    hosts: str | None = None,
    hostfile: str | Path | None = None,
    *,
    env: Mapping[str, str] | None = None,
    start_timeout: float = 30.0,
    grace_time: float = 5.0,
    ssh_port: int | None = None,
    ssh_identity_file: str | Path | None = None,
    ssh_options: Sequence[str] = (),
    output_filename: str | Path | None = None,
    network_interfaces: str | None = None,
    verbose: bool = False,
) -> list[T]:
    """Calls `func(*args, **kwargs)` in `num_proc` new processes; returns the results by rank.

    func: a function of an importable module; with cloudpickle installed, any function.  It calls
    rabit.init() itself.  Results must be picklable.
    hosts, hostfile: as for rabitrun; without them all ranks run on this machine.
    Blocks until every rank has ended.  What ranks print appears as with rabitrun.
    Raises RunFailed with the report about the cause if a rank fails.
    """
    from rabit.launch.hosts import local_hosts, parse_hostfile, parse_hosts
    from rabit.launch.launcher import Request, launch
    from rabit.launch.plan import make_plan
    from rabit.launch.ssh import SshOptions
    from rabit.launch.supervisor import Times

    if hosts is not None and hostfile is not None:
        raise InvalidArgument("run() got both hosts and hostfile. Give one of them.")
    found = (
        parse_hosts(hosts, "hosts")
        if hosts is not None
        else parse_hostfile(Path(hostfile))
        if hostfile is not None
        else local_hosts(max(1, num_proc))
    )
    request = Request(
        plan=make_plan(found, num_proc),
        command=(),
        environ={**process_environment(), "PYTHONPATH": _python_path()},
        tuning=({"RABIT_NETWORK_INTERFACES": network_interfaces} if network_interfaces else {}),
        user=dict(env or {}),
        times=Times(start_s=start_timeout, grace_s=grace_time),
        ssh=SshOptions(
            port=ssh_port,
            identity_file=Path(ssh_identity_file) if ssh_identity_file else None,
            options=tuple(ssh_options),
        ),
        output_folder=Path(output_filename) if output_filename else None,
        is_verbose=verbose,
        payload=_pickled((func, tuple(args), dict(kwargs or {}))),
    )
    outcome = launch(request)
    if outcome.status:
        raise RunFailed(outcome.report or "the job was stopped by a signal", -1, outcome.status)
    return [_unpickled(outcome.results.get(rank, b""), rank) for rank in range(num_proc)]


def _python_path() -> str:
    """Where this process finds modules, so that ranks find the module of the function."""
    here = [each or str(Path.cwd()) for each in sys.path]
    return os.pathsep.join(each for each in here if Path(each).exists())


def _pickled(call: Any) -> bytes:
    with contextlib.suppress(ImportError):
        import cloudpickle

        return bytes(cloudpickle.dumps(call))
    try:
        return pickle.dumps(call)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise InvalidArgument(
            f"run() cannot send the function to other processes: {error}. Define it in a module, "
            "or install cloudpickle ('pip install cloudpickle')."
        ) from error


def _unpickled(data: bytes, rank: int) -> Any:
    # It comes from our own child, through a pipe or an ssh connection that nobody else can open.
    if not data:
        raise RunFailed(
            f"rank {rank} ended with status 0 and gave no result: the function ended the process. "
            "Return from it instead.",
            rank,
        )
    return pickle.loads(data)
