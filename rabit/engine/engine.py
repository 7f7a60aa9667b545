"""Engine: one rank of one job.  No globals: several engines may live in one process."""

from __future__ import annotations

import contextlib
import itertools
import weakref
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rabit._native import check, ffi, read_json
from rabit.compression import CompressionCodec
from rabit.config.config import Config
from rabit.engine import mpi
from rabit.engine.handle import Handle, wait_any
from rabit.engine.job import Job
from rabit.engine.native_engine import NativeEngine
from rabit.engine.repeats import GroupRepeat, Repeat, Repeats
from rabit.engine.request import WAITING, Batch, Request, Waiting, refuse, run, submit
from rabit.errors import InvalidArgument, RabitError
from rabit.tuning import attach

if TYPE_CHECKING:
    from rabit.tuning.tuner import Tuner

__all__ = ["Engine"]


class Engine:
    """A native engine: its background thread, lanes and connections.  Thread-safe.

    config: where this rank stands and how it works; None: from the environment.
    epoch: counts the engines of this job, from 1; equal on all ranks.
    comm: for the backend mpi, an mpi4py communicator whose processes are the ranks; None:
    MPI.COMM_WORLD.
    Starting blocks until every rank has connected, at most `config.connect_timeout` seconds.
    """

    def __init__(self, config: Config | None = None, *, epoch: int = 1, comm: Any = None) -> None:
        self.config = Config.from_environ() if config is None else config
        extra: dict[str, object] = {"epoch": epoch}
        if mpi.is_wanted(self.config):
            extra["mpi"] = mpi.mpi_options(self.config, comm)
        extra.update(attach.extra_options(self.config))
        self._native = NativeEngine(self.config.to_options(**extra), self.config.library)
        self._repeats = Repeats(self._native)
        self.reports: dict[str, dict[str, Any]] = {}  # of framework packages, for `statistics`
        self.steps = 0  # training steps; see end_step
        self._tuner: Tuner | None = None
        self.overlap_choice: attach.Choice | None = None  # see rabit.ops.overlap_choice
        self.wants_stop = False  # see rabit.ops.votes
        self.stops_on_signals = False
        self._before_close: list[weakref.WeakMethod[Callable[[], None]]] = []
        self._codecs: dict[str, int] = {"": 0, "none": 0}
        self._backends: dict[str, int] = {}
        self._counters: dict[str, Iterator[int]] = {}
        self._members: dict[int, tuple[int, ...]] = {0: tuple(range(self._native.size))}
        if self.config.timeline and (self.rank == 0 or "{rank}" in self.config.timeline):
            path = self.config.timeline.replace("{rank}", str(self.rank))
            self.start_timeline(path, self.config.timeline_mark_cycles)
        self._tuner = attach.make_tuner(self)

    @property
    def rank(self) -> int:
        return self._native.rank

    @property
    def size(self) -> int:
        return self._native.size

    @property
    def local_rank(self) -> int:
        return self.config.local_rank

    @property
    def local_size(self) -> int:
        return self.config.local_size

    @property
    def cross_rank(self) -> int:
        return self.config.cross_rank

    @property
    def cross_size(self) -> int:
        return self.config.cross_size

    @property
    def is_closed(self) -> bool:
        return self._native.is_closed

    def check_process(self) -> None:
        """Raises NotInitialized in a process that was forked from the one that made the engine."""
        self._native.live_pointer()

    def submit(self, requests: Sequence[Request]) -> list[Handle]:
        """Submits all of `requests` or none; returns at once.

        Raises InvalidArgument for a name that is in flight, NotInitialized after `close`.
        """
        return submit(self._native, requests)

    def refuse(self, request: Request, reason: str) -> None:
        """Says that this rank will not submit `request`, because of `reason`; it then raises that.

        The other ranks of the group raise InvalidArgument with it instead of waiting.  Of the request,
        kind, name, group and root count.
        """
        refuse(self._native, request, reason)

    def waiting(self) -> Waiting:
        """A context in which this thread waits for each operation that it submits by itself.

        For blocking forms that are made of others: `with engine.waiting(): handle = start()`.  As
        with `run`, the thread does the engine's work; several requests at once are submitted as
        ever, and handles are to be waited for in any case.
        """
        return WAITING

    def run(self, request: Request) -> Handle:
        """Submits `request` and waits for it, for a while; faster than submit and wait.

        The handle has finished, or is to be waited for as usual.
        """
        return run(self._native, request)

    def prepare(self, requests: Sequence[Request]) -> Batch:
        """Requests that will be submitted many times, in their C form."""
        return Batch(self._native, requests)

    def make_job(self, requests: Sequence[Request], address: int, release: int) -> Job:
        """Requests for another runtime's dependency engine to submit; see Job.

        The engine must outlive the job.
        """
        return Job(self._native, requests, address, release)

    def next_number(self, key: str) -> int:
        """1, 2, 3, ... for each key; equal on ranks that make the same calls in the same order."""
        counter = self._counters.get(key)
        if counter is None:  # Two threads that get here agree on one of two.
            counter = self._counters.setdefault(key, itertools.count(1))
        return next(counter)

    def auto_name(self, key: str) -> str:
        """A name for an operation that was given none."""
        return f"{key}.noname.{self.next_number(key)}"

    def again(
        self,
        caller: str,
        kind: str,
        name: str | None,
        group: int,
        arguments: tuple[Any, ...],
        tensor: Any,
    ) -> Repeat:
        """A call of the public function `caller`, which may have come before.

        kind: of the operation, whose number is its name if there is none.
        """
        if name is not None:
            return Repeat(self._repeats, (caller, name, group), None, arguments, tensor)
        number = self.auto_name(kind if group == 0 else f"{kind}.set{group}")
        key = (caller, None, group, getattr(tensor, "shape", None))
        return Repeat(self._repeats, key, number, arguments, tensor)

    def again_grouped(
        self,
        caller: str,
        name: str | None,
        group: int,
        arguments: tuple[Any, ...],
        tensors: Sequence[Any],
    ) -> GroupRepeat:
        """A call of the public function `caller` for several tensors, which may have come before."""
        key = None if name is None else (caller, name, group, len(tensors))
        return GroupRepeat(self._repeats, key, arguments, tensors)

    def add_group(self, ranks: Sequence[int], timeout: float | None = None) -> int:
        """The number of the group of `ranks`.  Collective; blocks until every rank has called."""
        members = self._check_ranks(ranks)
        group = ffi.new("int32_t*")
        pointer = self._native.open_pointer()
        library = self._native.library
        limit = self._timeout_ms(timeout)
        check(library, library.rabit_add_group(pointer, members, len(members), limit, group))
        self._members[group[0]] = tuple(members)
        return int(group[0])

    def remove_group(self, group: int, timeout: float | None = None) -> None:
        """Forgets a group.  Collective; blocks until every rank has called."""
        library, pointer = self._native.library, self._native.open_pointer()
        check(library, library.rabit_remove_group(pointer, group, self._timeout_ms(timeout)))
        self._members.pop(group, None)

    def wait_any(self, handles: Sequence[Handle], timeout: float | None = None) -> int:
        """Blocks until one of `handles` has finished, well or not; its place in the list.

        At most `timeout` seconds; then it raises TimedOut, and all stay in flight.
        """
        return wait_any(self._native, handles, timeout)

    def members(self, group: int = 0) -> tuple[int, ...]:
        """The global ranks of a group, ascending."""
        found = self._members.get(group)
        if found is None:
            raise InvalidArgument(
                f"group {group} does not exist on rank {self.rank} (known: "
                f"{sorted(self._members)}). Add it with add_process_set on every rank."
            )
        return found

    def codec_id(self, compression: CompressionCodec) -> int:
        """The number of a codec on this engine; 0 for none."""
        if not isinstance(compression, CompressionCodec):
            raise InvalidArgument(
                f"compression is {compression!r}: expected one of rabit.Compression, such as "
                "Compression.bf16 or Compression.levels(bits=4)."
            )
        spec = compression.spec
        found = self._codecs.get(spec)
        if found is None:
            slot = ffi.new("int32_t*")
            library, pointer = self._native.library, self._native.open_pointer()
            check(library, library.rabit_add_codec(pointer, spec.encode("utf-8"), slot))
            found = self._codecs[spec] = int(slot[0])
        return found

    def backend(self, name: str) -> int:
        """The number of a backend, for `Request.backend`."""
        found = self._backends.get(name)
        if found is None:
            if name == "mpi" and not mpi.is_wanted(self.config):
                raise InvalidArgument(
                    f"backend 'mpi' is not ready on rank {self.rank}: RABIT_BACKEND is "
                    f"{self.config.backend!r}. Set it to 'mpi', or to 'builtin,mpi' to keep "
                    "builtin as the default, before rabit.init()."
                )
            slot = ffi.new("int32_t*")
            library, pointer = self._native.library, self._native.open_pointer()
            check(library, library.rabit_find_backend(pointer, name.encode("utf-8"), slot))
            found = self._backends[name] = int(slot[0])
        return found

    def end_step(self) -> None:
        """Marks the end of a training step: framework packages call it when the optimizer has stepped.

        Counts for the summary, and is where the autotuner looks at the clock.
        """
        self.steps += 1
        if self._tuner is not None:
            self._tuner.end_step()

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

    def start_timeline(self, path: str, mark_cycles: bool = False) -> None:
        """Writes a trace of every operation of this rank to `path`, in Chrome's format."""
        library, pointer = self._native.library, self._native.open_pointer()
        check(library, library.rabit_start_timeline(pointer, str(path).encode(), int(mark_cycles)))

    def stop_timeline(self) -> None:
        """Ends the trace; the file is complete."""
        library, pointer = self._native.library, self._native.open_pointer()
        check(library, library.rabit_stop_timeline(pointer))

    def statistics(self) -> dict[str, Any]:
        """A snapshot of what the engine has done, as one document.  Also after `close`."""
        library = self._native.library
        document = read_json(library, library.rabit_stats, self._native.live_pointer())
        tuned = {} if self._tuner is None else {"autotune": dict(self._tuner.report)}
        counted = {"rank": self.rank, "size": self.size, "steps": self.steps}
        return {
            **document,
            **counted,
            **tuned,
            **{key: dict(each) for key, each in self.reports.items()},
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
        with Aborted.  Waits at most `timeout` seconds until the others have been told.  Nothing
        happens if the engine is closed or has failed.
        """
        self._native.abort(reason, timeout)

    def before_close(self, callback: Callable[[], None]) -> None:
        """Calls a method before the engine closes in good order, so that it can finish its work.

        callback: a bound method; its object may die before.
        """
        self._before_close.append(weakref.WeakMethod(callback))

    def _finish_pending(self) -> None:
        callbacks, self._before_close = self._before_close, []
        for reference in callbacks:
            callback = reference()
            if callback is not None:
                callback()

    def _stop(self, timeout: float) -> None:
        try:
            self._native.stop(timeout)
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

    def _timeout_ms(self, timeout: float | None) -> int:
        return int((self.config.connect_timeout if timeout is None else timeout) * 1000)

    def _check_ranks(self, ranks: Sequence[int]) -> list[int]:
        members = sorted(int(rank) for rank in ranks)
        valid = all(0 <= rank < self.size for rank in members)
        if not members or len(set(members)) != len(members) or not valid:
            raise InvalidArgument(
                f"a process set of ranks {list(ranks)} cannot be made in a job of {self.size}: "
                f"ranks must differ and lie between 0 and {self.size - 1}. Correct the list."
            )
        return members
