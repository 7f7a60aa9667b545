"""Engine: one rank of one job.  No globals: several engines may live in one process."""

from __future__ import annotations

import contextlib
import math
import weakref
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from rabit._native import check, ffi, read_json
from rabit.config.config import Config, process_environment
from rabit.config.diagnostics import path_of_engine, path_of_rank
from rabit.engine import mpi, nccl
from rabit.engine.native_engine import NativeEngine
from rabit.engine.pool import Pool
from rabit.engine.registry import Registry
from rabit.engine.submission import Submission
from rabit.errors import RabitError
from rabit.record.current import open_record
from rabit.tuning import attach

if TYPE_CHECKING:
    from rabit.record.file import RecordFile
    from rabit.tuning.tuner import Tuner

__all__ = ["STATISTICS_SCHEMA", "Engine"]

# Of the document of statistics(): docs/reference/statistics.md.
STATISTICS_SCHEMA = 1

# A lost server ends an update earlier; a bound on staleness waits for a slow rank for as long.
_UPDATE_TIMEOUT_MS = 86_400_000


class StepWatch(Protocol):
    """What looks at the job after each training step."""

    def end_step(self) -> None: ...


class Engine(Submission, Registry):
    """A native engine: its background thread, lanes and connections.  Thread-safe.

    config: where this rank stands and how it works; None: from the environment.
    epoch: counts the engines of this job, from 1; equal on all ranks.
    comm: for the backend mpi, an mpi4py communicator whose processes are the ranks; None:
    MPI.COMM_WORLD.
    pool, members: of an elastic job, the connections of this process and the numbers of its members
    in the order of their ranks; an engine starts when the one before over the pool is closed.
    Starting blocks until every rank has connected, at most `config.connect_timeout` seconds.
    """

    def __init__(
        self,
        config: Config | None = None,
        *,
        epoch: int = 1,
        comm: Any = None,
        pool: Pool | None = None,
        members: Sequence[int] = (),
    ) -> None:
        config = Config.from_environ() if config is None else config
        extra: dict[str, object] = {"epoch": epoch}
        if pool is not None:
            extra["members"] = ",".join(map(str, members))
        if mpi.is_wanted(config):
            extra["mpi"] = mpi.mpi_options(config, comm)
        extra.update(attach.extra_options(config))
        if config.comm_log:
            log = path_of_engine(config.comm_log, epoch, config.restart)
            extra["operation_log"] = path_of_rank(log, config.rank)
        self.record = _record_of(config, epoch)
        if self.record is not None:
            extra["record"] = self.record.own_path
        options = nccl.with_library(config).to_options(**extra)
        try:
            native = NativeEngine(options, config.library, pool)
        except BaseException:
            if self.record is not None:
                self.record.is_used = False
            raise
        super().__init__(config, native)
        self.reports: dict[str, dict[str, Any]] = {}  # of framework packages, for `statistics`
        self.steps = 0  # training steps; see end_step
        self.refuses_join = ""  # why join() cannot be called on any rank
        self._tuner: Tuner | None = None
        self.overlap_choice: attach.Choice | None = None  # see rabit.ops.overlap_choice
        self.plan_watch: StepWatch | None = None  # see rabit.replanning
        self.wants_stop = False  # see rabit.ops.votes
        self.stops_on_signals = False
        self.stops_at = math.inf  # before the scheduler ends the job, in seconds since the epoch
        self._before_close: list[Callable[[], Callable[[], None] | None]] = []
        if self.config.timeline and (self.rank == 0 or "{rank}" in self.config.timeline):
            path = path_of_engine(self.config.timeline, epoch, self.config.restart)
            self.start_timeline(
                path.replace("{rank}", str(self.rank)), self.config.timeline_mark_cycles
            )
        self._tuner = attach.make_tuner(self)
        attach.apply_table(self)

    def end_step(self, is_of_all: bool = True) -> None:
        """Marks the end of a training step: framework packages call it when the optimizer has stepped.

        Counts for the summary, and is where the autotuner looks at the clock. With RABIT_PLAN=auto the ranks compare
        there, every few steps, whether the network has changed: it blocks while they probe.
        is_of_all: every rank takes this step; else it does not count for that comparison.
        """
        self.steps += 1
        if self.record is not None:
            self.record.end_step()
        if self._tuner is not None:
            self._tuner.end_step()
        if self.plan_watch is not None and is_of_all:
            self.plan_watch.end_step()

    @property
    def tunes_overlap(self) -> bool:
        """True while the autotuner may choose the overlap; on rank 0 only."""
        return self._tuner is not None and self.is_tuning and "overlap" in self._tuner.plan.knobs

    @property
    def is_tuning(self) -> bool:
        """True while the autotuner measures; on rank 0 only."""
        return self._tuner is not None and not self._tuner.is_done

    def propose_tunables(
        self,
        *,
        partition_bytes: int | None = None,
        fusion_bytes: int | None = None,
        credit_bytes: int | None = None,
        lanes: int | None = None,
    ) -> None:
        """Changes how every rank cuts, joins and holds back, from the next negotiation on.

        Rank 0 only; None leaves a value alone.  Operations may be in flight.  Returns before the other
        ranks know; `statistics()["tunables"]` tells what is in force.
        """
        given = (partition_bytes, fusion_bytes, credit_bytes, lanes)
        tunables = ffi.new("rabit_tunables*", [-1 if each is None else each for each in given])
        library, pointer = self._native.library, self._native.open_pointer()
        check(library, library.rabit_propose_tunables(pointer, tunables))

    def reset_tunables(self) -> None:
        """Takes all proposals back: every rank works as it would without them.

        Where sizes followed from the measured link (RABIT_SIZES=measured) they do so again.  Rank 0
        only; returns before the other ranks know.
        """
        library, pointer = self._native.library, self._native.open_pointer()
        check(library, library.rabit_reset_tunables(pointer))

    def update(self, key: int, mode: int, address: int, count: int, dtype: int) -> None:
        """Has the servers update what they keep under `key`; see `rabit.ServerParameters`.

        address: of `count` elements, which become what the servers keep.  Blocks for their answer.
        Raises Unsupported in a job whose servers keep nothing.
        """
        library, pointer = self._native.library, self._native.open_pointer()
        data = ffi.cast("void*", address)
        code = library.rabit_update(pointer, key, mode, data, count, dtype, _UPDATE_TIMEOUT_MS)
        check(library, code)

    def start_timeline(self, path: str, mark_cycles: bool = False) -> None:
        """Writes a trace of every operation of this rank to `path`, in Chrome's format."""
        library, pointer = self._native.library, self._native.open_pointer()
        check(library, library.rabit_start_timeline(pointer, str(path).encode(), int(mark_cycles)))

    def stop_timeline(self) -> None:
        """Ends the trace; the file is complete."""
        library, pointer = self._native.library, self._native.open_pointer()
        check(library, library.rabit_stop_timeline(pointer))

    def statistics(self) -> dict[str, Any]:
        """A snapshot of what the engine has done, as docs/reference/statistics.md says.  Also after `close`."""
        library = self._native.library
        document = read_json(library, library.rabit_stats, self._native.live_pointer())
        tuned = {} if self._tuner is None else {"autotune": dict(self._tuner.report)}
        counted = {"schema": STATISTICS_SCHEMA, "rank": self.rank, "size": self.size, "steps": self.steps}
        return {
            **document,
            **counted,
            **tuned,
            **{key: dict(report) for key, report in self.reports.items()},
        }

    def close(self, timeout: float = 30.0) -> None:
        """Stops the engine; waits at most `timeout` seconds for the other ranks to do so.

        Operations in flight are aborted then.  Idempotent.
        """
        try:
            if timeout > 0 and not self.is_closed:
                self._finish_pending()
        finally:
            self._stop(timeout)

    def abort(self, reason: str, timeout: float = 5.0) -> None:
        """Tells the other ranks why this one ends; call it before a process leaves because of an error.

        reason: what ends it, as "ValueError: no such file".  The other ranks raise PeerLost with the
        text "rank 1 is ending after ValueError: no such file"; operations in flight on this rank end
        with Aborted.  Waits at most `timeout` seconds until the others have been informed.  Nothing
        happens if the engine is closed or has failed.
        """
        self._native.abort(reason, timeout)

    def before_close(self, callback: Callable[[], None], keeps: bool = False) -> None:
        """Calls a method before the engine closes in good order, so that it can finish its work.

        callback: a bound method.  keeps: its object lives until then.  Else it may die before, which it does at
        another moment on each rank: only for work that takes no other rank.
        """
        # A program may make many objects in turn.
        self._before_close = [each for each in self._before_close if each() is not None]
        self._before_close.append((lambda: callback) if keeps else weakref.WeakMethod(callback))

    def _finish_pending(self) -> None:
        callbacks, self._before_close = self._before_close, []
        for reference in callbacks:
            callback = reference()
            if callback is not None:
                callback()

    def _stop(self, timeout: float) -> None:
        try:
            self._native.stop(timeout)
            if self.record is not None and self.record.is_used:
                self.record.describe(end="stopped")
                self.record.is_used = False
        except RabitError:
            if mpi.is_wanted(self.config):
                mpi.note_failure()
            raise

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
            return
        # The other ranks may wait for an operation that never comes: they learn soonest by losing
        # this rank.  That they have not stopped is a consequence; `error` is the cause.
        with contextlib.suppress(RabitError):
            self.abort(f"{type(error).__name__}: {error}")
            self.close(0.0)

    def __repr__(self) -> str:
        state = "closed" if self.is_closed else "open"
        return f"<rabit.Engine rank {self.rank} of {self.size}, {state}>"


def _record_of(config: Config, epoch: int) -> RecordFile | None:
    environ = process_environment()
    threads = environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    facts = {
        "omp_threads": int(threads) if threads.isdigit() else 0,
        "size": config.size,
        "local_rank": config.local_rank,
        "epoch": epoch,
        "restart": config.restart,
        "joins": config.joins,
        "address": config.bind_address,
        "end": "",
    }
    return open_record(config.record, config.rank, facts, environ)
