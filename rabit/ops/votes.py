"""Decisions that all ranks take together: any_rank, request_stop, should_stop.

A vote travels inside the negotiation: no collective runs and no data moves.  It costs what it costs
the slowest rank to arrive, plus one message to rank 0 and one back.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import numpy as np

from rabit.config.config import process_environment
from rabit.engine.current import current_engine
from rabit.engine.process_set import ProcessSet, global_process_set, group_on
from rabit.engine.request import Request
from rabit.engine.tensor import TensorView
from rabit.errors import InvalidArgument, NotInitialized
from rabit.types import DType, Kind

if TYPE_CHECKING:
    from rabit.engine.engine import Engine

__all__ = ["Vote", "any_rank", "request_stop", "should_stop"]


class Vote:
    """A vote on its way: the bitwise OR of every rank's `bits`, at most 63 of them.

    Every rank of `process_set` makes one of the same name; a joined rank votes 0.
    """

    def __init__(
        self,
        bits: int,
        name: str,
        process_set: ProcessSet = global_process_set,
        *,
        engine: Engine,
    ) -> None:
        mine = np.array([bits], np.int64)
        self._answer = np.zeros(1, np.int64)
        sent, received = (
            TensorView(each.ctypes.data, (1,), DType.INT64, keepalive=each)
            for each in (mine, self._answer)
        )
        request = Request(Kind.VOTE, name, sent, received, group=group_on(process_set, engine))
        self._handle = engine.submit((request,))[0]

    def wait(self) -> int:
        """The answer, the same on every rank.  Blocks until every rank has voted."""
        self._handle.wait()
        return int(self._answer[0])


def any_rank(
    condition: bool,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    *,
    engine: Engine | None = None,
) -> bool:
    """True if `condition` holds on at least one rank; the same answer on every rank.

    name: only for several votes at the same time, from different threads.
    Blocks until every rank of `process_set` has called it; a joined rank votes no.
    """
    engine = engine or current_engine()
    return Vote(int(condition), name or "rabit.any_rank", process_set, engine=engine).wait() != 0


def request_stop(*, engine: Engine | None = None) -> None:
    """Asks all ranks to stop at their next `should_stop`.  Returns at once; for signal handlers."""
    (engine or current_engine()).wants_stop = True


def should_stop(*, engine: Engine | None = None) -> bool:
    """True if some rank has called `request_stop`; the same answer on every rank.

    Call it once a step: all ranks then leave at the same step.  The first call in the main thread
    makes the signals of RABIT_STOP_SIGNALS (SIGTERM and SIGUSR1) such requests, unless the program handles them
    itself; a second signal ends the process as usual.  A file that a rank sees under the name of RABIT_STOP_FILE is
    one too, and so is the time limit of a job of Slurm, RABIT_STOP_BEFORE seconds before it comes.
    Blocks until every rank has called it.
    """
    engine = engine or current_engine()
    if not engine.stops_on_signals:
        engine.stops_on_signals = True
        _listen(engine.config.stop_signals)
        if engine.config.stop_before > 0 and engine.rank == 0:
            from rabit.ops.time_limit import end_time

            engine.stops_at = end_time(process_environment()) - engine.config.stop_before
    stop_file = engine.config.stop_file
    wants = engine.wants_stop or (bool(stop_file) and Path(stop_file).exists())
    wants = wants or time.time() >= engine.stops_at
    stop = any_rank(wants, "rabit.should_stop", engine=engine)
    if stop:  # A request that came during the vote is for the next one.
        engine.wants_stop = True
    return stop


def _listen(names: str) -> None:
    found = [_signal(name.strip().upper()) for name in names.split(",") if name.strip()]
    if threading.current_thread() is not threading.main_thread():
        return
    for each in found:
        if signal.getsignal(each) == signal.SIG_DFL:
            signal.signal(each, _on_signal)


def _signal(name: str) -> signal.Signals:
    full = name if name.startswith("SIG") else f"SIG{name}"
    try:
        found = signal.Signals[full]
    except KeyError:
        found = signal.SIGKILL
    if found in (signal.SIGKILL, signal.SIGSTOP):
        raise InvalidArgument(
            f"RABIT_STOP_SIGNALS has {name!r}, which is not a signal that a program can receive. Use names such as "
            "TERM, USR1, USR2 or HUP."
        )
    return found


def _on_signal(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_DFL)
    try:
        request_stop()
    except NotInitialized:
        os.kill(os.getpid(), number)
