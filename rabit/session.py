"""init, shutdown and what is known about this process: one default engine per process."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rabit.config.config import Config, rank_environment
from rabit.config.together import check_together
from rabit.diagnostics.ending import (
    REPORT_FD,
    REPORT_STORE,
    take_place,
    tell_admitted,
    tell_on_failure,
    watch_ending,
)
from rabit.diagnostics.process import open_standard_streams
from rabit.engine.current import current_engine, known_engine, set_default_engine, tell_followers
from rabit.engine.engine import Engine
from rabit.engine.pool import Pool
from rabit.errors import InvalidArgument, Mismatch, PeerLost, RabitError, TimedOut, has_failed
from rabit.printable import printable
from rabit.rendezvous.discovery import Discovery
from rabit.rendezvous.waiting import says_after_a_while, whom_it_waits_for

if TYPE_CHECKING:
    from rabit.engine.process_set import ProcessSet
    from rabit.rendezvous.membership import Membership

__all__ = [
    "cross_rank",
    "cross_size",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "rank",
    "shutdown",
    "size",
]


# Of an engine that has failed already: its threads end at once, and connections come back with them.
_STOP_S = 10.0


class _State:
    """What init() leaves behind.  A forked child starts with a fresh one."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.pid = os.getpid()
        self.engine: Engine | None = None
        self.has_run = False  # an engine
        self.epoch = 0  # of the last one that was to start
        self.is_homogeneous = True
        self.discovery = Discovery()
        # Of an elastic job: what outlives engines, and of which epoch and members the newest one is.
        self.pool: Pool | None = None
        self.elastic_epoch = 0
        self.members: tuple[int, ...] = ()
        self.seat: int | None = None


_state = _State()


def init(
    comm: Any = None,
    process_sets: Sequence[ProcessSet] | str | None = None,
    *,
    config: Config | None = None,
) -> None:
    """Starts the default engine and connects it to the other ranks.  Does nothing if it runs.

    comm: None, or an mpi4py communicator whose processes are the ranks.
    process_sets: sets to register, the same on every rank; "dynamic" is accepted and means none.
    config: None reads the environment, as set by rabitrun, torchrun, mpirun or srun.
    Blocks until every rank has called it, at most `config.connect_timeout` seconds.  All ranks fail together then,
    and may call it again; in an elastic job those that do so agree on who continues.  After 5 s the first rank
    that has come prints which have not.
    """
    with _state.lock:
        _leave_parent()
        if _state.engine is not None and not _state.engine.is_closed:
            return
        open_standard_streams()
        environ = rank_environment()
        report = _reporter(environ)
        watch_ending(-1, environ, report)  # From here on: what is wrong with the settings is a cause as well.
        found = Config.from_environ(environ) if config is None else config
        found = _state.discovery.place(found, environ, comm)
        watch_ending(found.rank, environ, report)
        check_together(found, f"on rank {found.rank}")
        _check_sets(process_sets, found)
        with _waiting(found):
            engine = _elastic_engine(found) or _first_engine(found, comm)
            _follow_plan(engine)
        _state.engine, _state.has_run = engine, True
        tell_on_failure(engine)
        set_default_engine(engine)
        # rabitrun has told them of the variables that it passed on.
        if found.rank == 0 and REPORT_FD not in environ:
            for notice in found.notices:
                print(f"rabit: {printable(notice)}", file=sys.stderr)
    if engine.local_size < engine.size and not found.joins:
        _state.is_homogeneous = _is_homogeneous(engine)
    if not isinstance(process_sets, str):
        for each in _distinct(process_sets or ()):
            each.register(engine)


def _reporter(environ: Mapping[str, str]) -> Callable[[bytes], None] | None:
    """How a rank of a rabit.Meeting says why it ends; None: its launcher has a pipe, or there is none."""
    if not environ.get(REPORT_STORE):
        return None
    from rabit.rendezvous.store_reports import reporter

    return reporter(environ)


def _waiting(config: Config) -> contextlib.AbstractContextManager[object]:
    """Around the start of the first engine: a user learns whom it waits for."""
    # Who comes to a job, or comes again, may wait until it is needed, and no list of ranks is known then.
    is_fixed = not config.joins and _state.elastic_epoch == 0
    if config.size == 1 or not is_fixed or not config.store_address or not config.secret:
        return contextlib.nullcontext()
    return says_after_a_while(functools.partial(whom_it_waits_for, config, _state.epoch + 1))


def _follow_plan(engine: Engine) -> None:
    """Puts the plan of RABIT_PLAN in force; an engine that cannot follow it is closed."""
    if engine.config.plan == "off" or engine.size == 1:
        return
    from rabit.planned import follow_plan, host_name  # With the operations, and NumPy.

    try:
        followed = follow_plan(engine, engine.config.plan, host_name(engine.config.host_key))
    except RabitError:
        engine.close(_STOP_S)
        raise
    if followed is not None:
        from rabit.replanning import PlanWatch

        engine.plan_watch = PlanWatch(engine, followed)


def _is_homogeneous(engine: Engine) -> bool:
    # Operations load with the first one, and NumPy with them: jobs of one host start without.
    from rabit.ops.collectives import allgather

    sizes = allgather([engine.local_size], name="rabit.local_size")
    return len(set(sizes.tolist())) == 1


def _check_sets(process_sets: Sequence[ProcessSet] | str | None, config: Config) -> None:
    """Raises InvalidArgument for sets that a process which comes later would have to add alone."""
    if process_sets and not isinstance(process_sets, str) and config.max_np > 0:
        raise InvalidArgument(
            f"init: process_sets on rank {config.rank} of an elastic job that may grow (RABIT_MAX_NP is "
            f"{config.max_np}): its ranks change. Add sets in a reset callback of the state and where "
            "training begins, or start the job without --max-np and --spares."
        )


def _first_engine(config: Config, comm: Any) -> Engine:
    """An engine of a job that is not elastic."""
    try:
        engine = Engine(config, epoch=_state.epoch + 1, comm=comm)
    except (Mismatch, PeerLost, TimedOut):  # So the others fail as well: who calls again meets them in the next epoch.
        _state.epoch += 1
        raise
    _state.epoch += 1
    return engine


def _elastic_engine(config: Config) -> Engine | None:
    """The first engine of this process in an elastic job, over its pool; None in any other job."""
    if config.min_np == 0 or not config.store_address:
        return None
    if _state.has_run:
        raise InvalidArgument(
            f"rabit.init() is called again on rank {config.rank} of an elastic job (--min-np "
            f"{config.min_np}), whose engines rabit.elastic.run starts. Call init() once and leave "
            "shutdown() to the end of the program, or start the job without --min-np."
        )
    if _state.pool is None:
        _state.pool = Pool(config, config.rank)
    if not config.joins and _state.elastic_epoch == 0:
        _state.elastic_epoch, _state.members = 1, tuple(range(config.size))
        return Engine(config, pool=_state.pool, members=_state.members)
    # Most processes need no client of their own before they train.
    from rabit.rendezvous.membership_store import membership_store
    from rabit.rendezvous.survivors import admission, next_membership, whom_not_reached

    number, limit_s = config.rank, config.elastic_timeout
    with contextlib.closing(membership_store(config, number)) as store:
        if _state.elastic_epoch == 0:
            membership = admission(store, number)
        else:  # The ranks have not met in an earlier call.
            membership = next_membership(store, number, _state.elastic_epoch, -1, "", limit_s)
        while True:
            try:
                engine = _engine_of(config, membership)
                if config.joins:
                    tell_admitted(membership.members)
                return engine
            except (PeerLost, TimedOut) as error:  # Another member has been lost meanwhile.
                lost = membership.member_of(error.rank)
                away = whom_not_reached(store, membership.members, number)
                membership = next_membership(store, number, membership.epoch, lost, str(error), limit_s, away)


def _engine_of(config: Config, membership: Membership) -> Engine:
    """An engine of this process, with the others of this membership."""
    from rabit.rendezvous.membership_store import store_addresses
    from rabit.rendezvous.place import are_hosts_equal, place_of

    assert _state.pool is not None
    place = place_of(membership, _state.pool.number)
    take_place(place.rank, membership.members)
    meeting = store_addresses(config)[membership.meeting.store]
    config = config.replace(store_address=meeting, **vars(place))
    _state.elastic_epoch, _state.members = membership.epoch, membership.members
    _state.seat = membership.seat_of(_state.pool.number)
    _state.is_homogeneous = are_hosts_equal(membership)
    return Engine(
        config, epoch=membership.epoch, pool=_state.pool, members=membership.members
    )


def member_number() -> int | None:
    """The number of this process in an elastic job, which it keeps; None in any other job."""
    return None if _state.pool is None else _state.pool.number


def members_now() -> tuple[int, tuple[int, ...]]:
    """Of an elastic job: the epoch of the newest engine, and the numbers of its members by rank."""
    return _state.elastic_epoch, _state.members


def seat_now() -> tuple[int, bool]:
    """What this process shares with those for which it came, and whether it came for one.

    See Membership.seat_of.
    """
    number = member_number()
    if number is None or _state.seat is None:
        return rank(), False
    return _state.seat, _state.seat != number


def start_over(membership: Membership) -> None:
    """Ends the default engine of an elastic job and starts the next one, of this membership.

    Blocks until all members have connected, at most `connect_timeout` seconds.  Raises PeerLost or
    TimedOut, with the rank, if one does not: this process has no engine then.
    """
    with _state.lock:
        engine, pool = _state.engine, _state.pool
        if engine is None or pool is None:
            raise InvalidArgument(
                "the engine of this process cannot be started over: rabit.init() has not been called, "
                "or the job is not elastic. Start it with rabitrun --min-np, and call init() first."
            )
        # What an engine that has failed says at its end is known.
        with contextlib.suppress(RabitError):
            engine.close(_STOP_S)
        started = _engine_of(engine.config, membership)
        _follow_plan(started)
        # What the program has been asked for holds on.
        started.wants_stop, started.stops_on_signals = engine.wants_stop, engine.stops_on_signals
        started.stops_at = engine.stops_at
        _state.engine = started
        tell_on_failure(started)
        set_default_engine(started)
    tell_followers()


def leave() -> None:
    """Ends the default engine of an elastic job that continues without this process."""
    with _state.lock, contextlib.suppress(RabitError):
        if _state.engine is not None:
            _state.engine.close(_STOP_S)


def _distinct(process_sets: Sequence[ProcessSet]) -> Sequence[ProcessSet]:
    seen: set[tuple[int, ...]] = set()
    for each in process_sets:
        ranks = tuple(each.ranks)
        if ranks in seen:
            raise InvalidArgument(
                f"init: process_sets has the set of ranks {list(ranks)} twice. Pass each set once."
            )
        seen.add(ranks)
    return process_sets


def shutdown(timeout: float = 30.0) -> None:
    """Stops the default engine; waits at most `timeout` seconds for the other ranks to do so.

    Called at exit as well.  Operations in flight are aborted.  Does nothing if none runs.  Raises what is wrong
    then, unless the program has had an error of the engine already: that is printed.
    """
    with _state.lock:
        engine, _state.engine = _state.engine, None
        if engine is None or _state.pid != os.getpid():
            return
        set_default_engine(None)
        _close(engine, timeout)


def _close(engine: Engine, timeout: float) -> None:
    # What the end of an engine that has failed finds is a consequence, which would hide the error that is handled, or
    # end a program that has handled it.
    is_consequence = has_failed() or isinstance(sys.exc_info()[1], RabitError)
    try:
        engine.close(timeout)
    except RabitError as error:
        if not is_consequence:
            raise
        if getattr(sys, "last_value", None) is None:  # else an exception that has been shown ends the program
            print(f"rabit: at shutdown: {error}", file=sys.stderr)
    finally:
        if engine.config.summary and engine.rank == 0:
            from rabit.diagnostics.summary import summary_text

            print(summary_text(engine.statistics()), file=sys.stderr)


def abandon() -> None:
    """Ends the default engine of a program that has failed, at once; what its end finds is a consequence."""
    with _state.lock:
        engine, _state.engine = _state.engine, None
        if engine is None or _state.pid != os.getpid():
            return
        set_default_engine(None)
        with contextlib.suppress(RabitError):
            engine.close(0.0)


def is_initialized() -> bool:
    """True between init() and shutdown()."""
    try:
        current_engine()
    except RabitError:
        return False
    return _state.pid == os.getpid()


def rank() -> int:
    """Number of this process among all, from 0; in a process that was forked from a rank, that rank's.

    So are all numbers below.  Raises NotInitialized before init().
    """
    return known_engine().rank


def size() -> int:
    """Number of ranks in the job."""
    return known_engine().size


def local_rank() -> int:
    """Number of this process among those of its host."""
    return known_engine().local_rank


def local_size() -> int:
    """Number of ranks on this host."""
    return known_engine().local_size


def cross_rank() -> int:
    """Position of this host among the hosts that have this local rank."""
    return known_engine().cross_rank


def cross_size() -> int:
    """Number of hosts that have this local rank."""
    return known_engine().cross_size


def is_homogeneous() -> bool:
    """True if every host has the same number of ranks."""
    engine = known_engine()
    return engine.local_size == engine.size or _state.is_homogeneous


def _leave_parent() -> None:
    """In a forked child: forgets the parent's state, unless the parent is a rank already."""
    global _state
    if _state.pid == os.getpid():
        return
    if _state.has_run:
        raise InvalidArgument(
            f"rabit.init() is called in process {os.getpid()}, which was forked from process "
            f"{_state.pid} after rabit.init() there; the two would answer to one rank. Start "
            "processes with the 'spawn' method, or fork before init()."
        )
    _state = _State()


def _shutdown_at_exit() -> None:
    # After an unhandled exception the other ranks may wait for this one: they learn soonest by
    # losing it, and not by its polite goodbye.
    has_failed = getattr(sys, "last_value", None) is not None
    try:
        shutdown(0.0 if has_failed else 30.0)
    except RabitError as error:
        if not has_failed:
            print(f"rabit: at exit: {error}", file=sys.stderr)
    finally:
        if _state.pid == os.getpid():
            _state.discovery.close()


atexit.register(_shutdown_at_exit)
