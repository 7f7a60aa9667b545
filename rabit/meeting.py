"""Meeting: rank, size, address and secret for processes that somebody else starts."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, ParamSpec, TypeVar, cast

from rabit.config.config import SECRET_VALUE, adopt_environment, process_environment
from rabit.diagnostics.ending import REPORT_FD, REPORT_STORE, stop_watching, tell_error
from rabit.errors import InvalidArgument
from rabit.launch.plan import RankPlace
from rabit.launch.report import Failure, choose_culprit, exit_status, explain
from rabit.launch.roster import Roster
from rabit.launch.run import RunFailed
from rabit.launch.secret import make_secret, write_secret_file
from rabit.launch.sent_code import pickled, unpickled
from rabit.launch.store import serve_store
from rabit.launch.torch_environ import master_environ, place_environ
from rabit.rendezvous.addresses import loopback_address
from rabit.rendezvous.own_address import reachable_address
from rabit.rendezvous.store_client import StoreClient
from rabit.rendezvous.store_reports import read_reports
from rabit.session import abandon, init, shutdown

__all__ = ["Meeting", "RankCall", "as_one_rank"]

P = ParamSpec("P")
T = TypeVar("T")

_THIS_HOST = "localhost"


class Meeting:
    """Where `size` processes meet that somebody else starts: a pool, a cluster, a shell.

        with rabit.Meeting(3) as meeting, ProcessPoolExecutor(3) as pool:
            results = list(pool.map(...))   # see as_rank, or environment

    hosts: the host of each rank, in the order of ranks, by any names that are equal for ranks of one host; None: all
    are on this one.  address: at which the ranks reach this process; "": the loopback without `hosts`, else an address
    of the default route, or what RABIT_NETWORK_INTERFACES names.

    Between `with` and its end the driver serves the store of the job.  The secret of the job is in a file that this
    user alone can read, without `hosts`, or a value that `rabit.init()` removes from the environment of its process.
    It never stands in a command line.  Leaving the block raises RunFailed, with the first cause, if a rank has
    reported an error or `ended` was called with a failure; an error of the block itself is then its `__cause__`.
    One thread only.
    """

    def __init__(
        self, size: int, *, hosts: Sequence[str] | None = None, address: str = ""
    ) -> None:
        if size < 1:
            raise InvalidArgument(f"Meeting: size is {size}: expected 1 or more ranks.")
        if hosts is not None and len(hosts) != size:
            raise InvalidArgument(
                f"Meeting: hosts has {len(hosts)} names, and size is {size}. Give one name for each rank."
            )
        self.size = size
        self._is_here = hosts is None
        self._places = _places(hosts or [_THIS_HOST] * size)
        self._address = address
        self._roster = Roster(dict(enumerate(hosts or [_THIS_HOST] * size)), size, lambda rank: ())
        self._shared: dict[str, str] = {}
        self._secret = b""
        self._seen = 0  # reports
        self._began = time.monotonic()
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Meeting:
        self._began = time.monotonic()
        address = self._address
        if not address:
            address = loopback_address() if self._is_here else reachable_address(process_environment())
        self._secret = make_secret()
        with contextlib.ExitStack() as stack:
            store = stack.enter_context(serve_store(address, self._secret))
            master = stack.enter_context(master_environ("", address))
            secret = self._local_secret(stack) if self._is_here else {SECRET_VALUE: self._secret.hex()}
            self._shared = {
                # What a job around this one has set does not count here.
                "RABIT_SECRET_FD": "-1", "RABIT_SECRET_FILE": "", REPORT_FD: "",
                "RABIT_STORE_ADDRESS": store, REPORT_STORE: "1", **master, **secret,
            }  # fmt: skip
            self._stack = stack.pop_all()
        return self

    def _local_secret(self, stack: contextlib.ExitStack) -> dict[str, str]:
        folder = Path(tempfile.mkdtemp(prefix="rabit-meeting-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        write_secret_file(folder / "secret", self._secret)
        return {
            "RABIT_SECRET_FILE": str(folder / "secret"),
            "RABIT_BIND_ADDRESS": loopback_address(),
        }

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            failure = self._first_failure()
        finally:
            self._stack.close()
            self._shared = {}
        if failure is None or (error is not None and not isinstance(error, Exception)):
            return
        status = exit_status(failure.status) or 1
        raise RunFailed(self._describe(failure), failure.rank, status) from error

    def environment(self, rank: int) -> dict[str, str]:
        """The variables of one process: put them on top of its environment, and call `rabit.init()` there.

        Those of torch.distributed are among them.  With `hosts`, hand them to the process as data and let it
        add them to its environment: one of them is the secret.
        """
        if not self._shared:
            raise InvalidArgument(
                "Meeting.environment: the meeting is not open. Use it inside of 'with rabit.Meeting(size) as meeting:'."
            )
        place = self._place(rank)
        return {**self._shared, **place.environ(self.size), **place_environ(place, self.size)}

    def as_rank(self, rank: int, function: Callable[P, T]) -> RankCall[P, T]:
        """`function` as the program of one rank: what it returns can be called in any process, once.

        The call becomes the rank with `rabit.init()`, calls `function`, and ends with `rabit.shutdown()`, so that a
        worker of a pool can serve other ranks later.  An error of `function` is reported to this meeting and raised.
        It can be pickled if cloudpickle takes `function`.  A process that cannot load it, such as a worker without its
        module, reports that as the error of the rank.
        """
        return RankCall(self.environment(rank), function)

    def ended(self, rank: int, status: int) -> None:
        """The process of `rank` has ended with this exit status, or minus the signal, as subprocess has it.

        For drivers that know it: a rank that was killed cannot report it.
        """
        self._place(rank)
        self._collect()
        if self._roster[rank].status is None:
            self._roster.ended(rank, status, status, self._now_s())

    def first_cause(self) -> str:
        """Why the job has failed, as far as ranks have reported; "": they have reported no failure."""
        failure = self._first_failure()
        return "" if failure is None else self._describe(failure)

    def _place(self, rank: int) -> RankPlace:
        if not 0 <= rank < self.size:
            raise InvalidArgument(f"Meeting: rank {rank} is not between 0 and {self.size - 1}. Correct it.")
        return self._places[rank]

    def _now_s(self) -> float:
        return time.monotonic() - self._began

    def _collect(self) -> None:
        """Takes the reports that have come."""
        if not self._shared:
            return
        store = self._shared["RABIT_STORE_ADDRESS"]
        with contextlib.closing(StoreClient(store, self._secret)) as client:
            for number, rank, line in read_reports(client, self._seen):
                self._seen = number
                if 0 <= rank < self.size:
                    self._roster.hear(rank, line, self._now_s())
                    self._note_end(rank)

    def _note_end(self, rank: int) -> None:
        """A rank that has said why it ends has ended, in the order of the reports."""
        told = self._roster[rank].told
        if told is not None and self._roster[rank].verdict is None and (told.raised or told.lost >= 0):
            self._roster.ended(rank, 1, 1, self._now_s())

    def _first_failure(self) -> Failure | None:
        self._collect()
        failures = self._roster.failures()
        found = choose_culprit([each for each in failures if each.status or each.told])
        return found if found is not None and (found.status or found.peers == []) else None

    def _describe(self, failure: Failure) -> str:
        failures = self._roster.failures()
        known = {each.rank for each in failures}
        silent = [rank for rank in failure.peers if rank not in known]
        lines = explain(failure, failures, self.size, "rabit.Meeting")
        if silent:
            host = self._roster[silent[0]].host
            lines.insert(
                0,
                f"rabit.Meeting: rank {silent[0]} of {self.size} (host {host}) was lost and reported no error: it was "
                "killed, or its process ended early. See what its engine says of it. The others noticed:",
            )
        return "\n".join(lines) + "\n"


class RankCall(Generic[P, T]):
    """A function that becomes a rank when it is called; see Meeting.as_rank."""

    def __init__(self, environ: Mapping[str, str], function: Callable[P, T]) -> None:
        self._environ = dict(environ)
        self._name = repr(function)
        self._function: Callable[P, T] | None = function
        self._pickled = b""

    def __repr__(self) -> str:  # Pools show it, and the environment may hold the secret.
        return f"RankCall(rank {self._environ['RABIT_RANK']}, {self._name})"

    def __getstate__(self) -> dict[str, Any]:
        """The function goes as bytes: Dask loses a worker that cannot load what it receives, and waits forever."""
        return {**self.__dict__, "_function": None, "_pickled": self._pickled or pickled(self._function)}

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        adopt_environment(self._environ)
        with as_one_rank():
            init()
            function = self._function or unpickled(self._pickled)
            return cast("T", function(*args, **kwargs))


@contextlib.contextmanager
def as_one_rank() -> Iterator[None]:
    """This process is a rank inside of the block: its error is reported, and its engine ends with the block."""
    try:
        yield
        shutdown()
    except BaseException as error:
        tell_error(error)
        abandon()
        raise
    finally:
        stop_watching()


def _places(hosts: Sequence[str]) -> list[RankPlace]:
    """Where each rank stands; ranks of one host need not follow each other."""
    local = [hosts[:rank].count(host) for rank, host in enumerate(hosts)]
    firsts = list(dict.fromkeys(hosts))
    places = []
    for rank, host in enumerate(hosts):
        column = [name for name in firsts if hosts.count(name) > local[rank]]
        places.append(
            RankPlace(rank, local[rank], hosts.count(host), column.index(host), len(column))
        )
    return places

