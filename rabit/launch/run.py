"""rabit.run: a Python function as the program of every rank."""

from __future__ import annotations

import io
import linecache
import operator
import os
import pickle
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import CodeType
from typing import Any, TypeVar

from rabit.config.config import process_environment
from rabit.errors import InvalidArgument, RabitError
from rabit.printable import printable_lines

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
    _refuse(given)
    results: list[T] = _run(given)
    return results


_ELASTIC = (
    "jobs of run() have a fixed number of ranks, since each of them returns a result. Start an elastic "
    "job with rabitrun --min-np, or call run() again with num_proc after a failure"
)
_REFUSED = {
    **dict.fromkeys(("min_num_proc", "max_num_proc", "min_np", "max_np", "slots"), _ELASTIC),
    **dict.fromkeys(("reset_limit", "cooldown_range", "host_discovery_script"), _ELASTIC),
    **dict.fromkeys(
        ("use_mpi", "mpi_args"),
        "run() starts ranks itself. Use 'rabitrun --launcher mpi' and a script, or backend='mpi' "
        "under mpirun",
    ),
}
_OLDER = {"num_proc": "np", "network_interfaces": "network_interface"}


def _refuse(given: dict[str, Any]) -> None:
    """Raises InvalidArgument for what cannot be done; gives older names their new one."""
    for name, why in _REFUSED.items():
        if given[name] not in (None, False):
            raise InvalidArgument(f"run() got {name}={given[name]!r}: {why}.")
    pairs = [*_OLDER.items(), ("hosts", "hostfile")]
    for name, other in pairs:
        if given[name] is not None and given[other] is not None:
            raise InvalidArgument(f"run() got both {name} and {other}. Give one of them.")
    for name, older in _OLDER.items():
        given[name] = given[older] if given[name] is None else given[name]
    if not callable(given["func"]):
        raise InvalidArgument(
            f"run() got func={given['func']!r}, which cannot be called. Pass a function, and its "
            "arguments in args and kwargs."
        )
    try:
        given["num_proc"] = operator.index(1 if given["num_proc"] is None else given["num_proc"])
    except TypeError:
        raise InvalidArgument(
            f"run() got num_proc={given['num_proc']!r}: the number of ranks is an integer. Pass one."
        ) from None


def _run(given: Mapping[str, Any]) -> Any:
    from rabit.launch.hosts import local_hosts, parse_hostfile, parse_hosts
    from rabit.launch.launchers.rabitrun import Request, launch
    from rabit.launch.nodes.ssh import SshOptions
    from rabit.launch.options.environment import check_variable
    from rabit.launch.plan import make_plan
    from rabit.launch.resolution import resolved
    from rabit.launch.supervisor import Times

    ranks = given["num_proc"]
    hosts = local_hosts(max(1, ranks))
    if given["hosts"] is not None:
        hosts = resolved(parse_hosts(given["hosts"], "hosts"))
    elif given["hostfile"] is not None:
        hosts = resolved(parse_hostfile(Path(given["hostfile"])))
    for name, value in dict(given["env"] or {}).items():
        check_variable(name, value, f"run() got env with {name!r}, which cannot be set", 'env={"NAME": "VALUE"}')
    interfaces, identity, output = (
        given[name] for name in ("network_interfaces", "ssh_identity_file", "output_filename")
    )
    start_s = 30.0 if given["start_timeout"] is None else given["start_timeout"]
    request = Request(
        plan=make_plan(hosts, ranks),
        command=(),
        environ={**process_environment(), "PYTHONPATH": _python_path()},
        # It starts no servers, whatever a job around this one has.
        tuning={
            "RABIT_SERVERS": "0",
            **({"RABIT_NETWORK_INTERFACES": interfaces} if interfaces else {}),
        },
        user=dict(given["env"] or {}),
        times=Times(start_s=start_s, grace_s=given["grace_time"]),
        ssh=SshOptions(
            port=given["ssh_port"],
            identity_file=Path(identity) if identity else None,
            options=tuple(given["ssh_options"]),
            python=given["executable"] or "",
        ),
        output_folder=Path(output) if output else None,
        is_verbose=bool(given["verbose"]),
        payload=_pickled((given["func"], tuple(given["args"]), dict(given["kwargs"] or {}))),
    )
    outcome = launch(request)
    if outcome.status:
        if not outcome.has_failed and outcome.status == 128 + signal.SIGINT:
            raise KeyboardInterrupt
        raise RunFailed(outcome.report or "the job was stopped by a signal", -1, outcome.status)
    return [_unpickled(outcome.results.get(rank, b""), rank) for rank in range(ranks)]


def _python_path() -> str:
    """Where this process finds modules, so that ranks find the module of the function."""
    from rabit.launch.job import working_directory

    here = [each or working_directory() for each in sys.path]
    return os.pathsep.join(each for each in here if Path(each).exists())


def _pickled(call: Any) -> bytes:
    """The call, and the lines of its code that a rank cannot read, such as the cells of a notebook."""
    import cloudpickle

    sources: dict[str, list[str]] = {}

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        """Keeps the file of each function, for the tracebacks of ranks: cloudpickle puts a constant there."""

        def reducer_override(self, value: Any) -> Any:
            if not isinstance(value, CodeType):
                return super().reducer_override(value)
            file = value.co_filename
            if not Path(file).exists():
                sources[file] = linecache.getlines(file)
            make, fields = self.dispatch_table[CodeType](value)
            return make, tuple(
                file if isinstance(each, str) and each == "<dynamic-code>" else each for each in fields
            )

    written = io.BytesIO()
    try:
        Pickler(written).dump(call)
        return pickle.dumps((written.getvalue(), sources))
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
            "Return from it instead.",
            rank,
        )
    return pickle.loads(data)
