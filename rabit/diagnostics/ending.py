"""What a rank tells before it ends: its launcher, so that the first cause is known as such.

A rank that fails takes the others with it, and which process ends first is chance.  Hence each
rank says why it ends while the others cannot know yet: the text lies in the launcher's pipe
before the engine stops, and what another rank says about it can only come later.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import sys
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rabit.diagnostics.process import hear_dropped_interrupts
from rabit.diagnostics.tracebacks import folded_traceback, message_of, one_line, users_frame
from rabit.errors import Aborted, PeerLost, RabitError, first_loss, forget_losses

if TYPE_CHECKING:
    from rabit.engine.engine import Engine

__all__ = [
    "REPORT_FD",
    "REPORT_STORE",
    "stop_watching",
    "take_place",
    "tell_admitted",
    "tell_error",
    "tell_given_up",
    "tell_met",
    "tell_on_failure",
    "watch_ending",
]

# Of the launcher: the writing end of its pipe to this rank.
REPORT_FD = "_RABIT_REPORT_FD"
# Of a rabit.Meeting, which has no pipe: reports go to its store.
REPORT_STORE = "_RABIT_REPORT_STORE"
# All fits into an empty pipe, so that a launcher that does not read for a while holds nobody up.
_LONGEST_TEXT = 2_000
# A store is told of ends alone: each report is a connection.
_ENDS = ("leaving", "raised")
# What other launchers leave in the environment of a rank.
_FOREIGN_MARKS = ("TORCHELASTIC_RUN_ID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
# They end the other ranks as soon as one has failed: a rank waits so long only if the one that it lost hangs.
_CAUSE_ENDS_S = 5.0


class _Watch:
    """Of this process: who is told.  A forked child tells nobody."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.rank = -1
        self.members: Sequence[int] = ()  # by rank, what the launcher calls them; empty: the same
        self.descriptor = -1
        self.report: Callable[[bytes], None] | None = None
        self.has_told = False
        self.is_among_strangers = False  # another launcher started it, which reports the rank that ends first
        self.lost = -1  # the rank whose end made this one raise
        self.engines: weakref.WeakSet[Engine] = weakref.WeakSet()
        self.previous_hook = sys.excepthook

    def number_of(self, rank: int) -> int:
        """What the launcher calls `rank`."""
        return self.members[rank] if 0 <= rank < len(self.members) else rank

    def tell(self, document: Mapping[str, Any]) -> None:
        """One line for the launcher, if it listens."""
        if self.pid != os.getpid():
            return
        line = json.dumps(document).encode() + b"\n"
        if self.report is not None and document["event"] in _ENDS:
            self.report(line)
        if self.descriptor < 0:
            return
        try:
            os.write(self.descriptor, line)
        except OSError:
            self.descriptor = -1  # The launcher is gone, and with it everyone who could read.

    def tell_ranks(self, error: BaseException) -> None:
        """The other ranks learn why this one ends, rather than that it is gone."""
        if self.pid != os.getpid():
            return
        for engine in self.engines:
            # One that cannot tell any more has failed already, and so have the others.
            with contextlib.suppress(RabitError):
                engine.abort(one_line(error))


_watch: list[_Watch] = []  # One or none.


def watch_ending(
    rank: int,
    environ: Mapping[str, str],
    report: Callable[[bytes], None] | None = None,
    awaits_all: bool = True,
) -> None:
    """From now on this process, which has become `rank`, tells why it ends.

    report: sends a line to a driver that has no pipe to this process.
    awaits_all: it is about to wait for all ranks of the job, so that the launcher ends the job if one ends well
    without waiting too; false for an engine of some of them.
    """
    if not _watch or _watch[0].pid != os.getpid():
        _watch[:] = [_Watch()]
        sys.excepthook = _hook
        hear_dropped_interrupts()
    watch = _watch[0]
    watch.rank, watch.report, watch.has_told = rank, report or watch.report, False
    watch.descriptor = _report_descriptor(environ)
    watch.is_among_strangers = watch.descriptor < 0 and any(mark in environ for mark in _FOREIGN_MARKS)
    forget_losses()
    watch.tell({"event": "joined", "awaits all": awaits_all})
    # Handlers run in reverse: this one before those that stop the engine.
    atexit.unregister(_at_exit)
    atexit.register(_at_exit)


def tell_error(error: BaseException) -> None:
    """The launcher and the other ranks learn that `error` ends the work of this process, if that is watched.

    For programs that catch what a rank raises, such as the workers of a pool.
    """
    if not _watch:
        return
    watch = _watch[0]
    lost = _lost_rank(error, watch.rank)
    _tell_raised(watch, error, lost)
    if lost < 0:
        watch.tell_ranks(error)


def stop_watching() -> None:
    """This process is not a rank any more, and continues with other work."""
    atexit.unregister(_at_exit)
    if _watch and _watch[0].pid == os.getpid():
        if sys.excepthook is _hook:
            sys.excepthook = _watch[0].previous_hook
        _watch.clear()
    forget_losses()


def take_place(rank: int, members: Sequence[int]) -> None:
    """This process has become `rank` of an engine with these members of an elastic job.

    What it has lost before is over.
    """
    watch = _watch[0]
    watch.rank, watch.members = rank, tuple(members)
    forget_losses()


def tell_admitted(members: Sequence[int]) -> None:
    """The launcher learns that this process has become one of these members."""
    _watch[0].tell({"event": "admitted", "size": len(members)})


def tell_given_up(members: Mapping[int, str]) -> None:
    """The launcher learns which processes the others continue without, and why; "": as it asked them to."""
    for member, why in members.items():
        _watch[0].tell({"event": "given up", "member": member, "why": why})


def tell_met() -> None:
    """The launcher learns that this process, which is watched, has met the ranks for which it waited."""
    _watch[0].tell({"event": "met"})


def tell_on_failure(engine: Engine) -> None:
    """`engine`, which has met the other ranks, tells them too, if this process, which is watched, fails."""
    _watch[0].engines.add(engine)
    tell_met()


def _report_descriptor(environ: Mapping[str, str]) -> int:
    text = environ.get(REPORT_FD, "")
    if not text.isdigit():
        return -1
    try:
        os.set_inheritable(int(text), False)
    except OSError:
        return -1  # A program between the launcher and this one has closed it.
    return int(text)


def _hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    watch = _watch[0]
    lost = _lost_rank(error, watch.rank)
    _tell_raised(watch, error, lost)
    try:
        _show(watch, kind, error, trace, lost)
    finally:
        if lost < 0:
            watch.tell_ranks(error)


def _show(
    watch: _Watch,
    kind: type[BaseException],
    error: BaseException,
    trace: TracebackType | None,
    lost: int,
) -> None:
    is_alone = watch.pid != os.getpid() or watch.descriptor < 0
    if is_alone or watch.previous_hook is not sys.__excepthook__:
        watch.previous_hook(kind, error, trace)
    elif lost >= 0:
        # The launcher shows the cause; one traceback for each rank would bury it.
        print(f"rabit: rank {watch.rank} ends with rank {lost}: {one_line(error)}", file=sys.stderr)
    else:
        sys.stderr.write(folded_traceback(error))


def _at_exit() -> None:
    watch = _watch[0]
    if watch.pid != os.getpid():
        return
    if not watch.has_told:
        _tell_at_exit(watch)
    if watch.lost >= 0 and watch.is_among_strangers:
        # The launcher takes the first rank that ends for the cause, and this one is none.
        time.sleep(_CAUSE_ENDS_S)


def _tell_at_exit(watch: _Watch) -> None:
    """For programs that put a hook of their own in place of ours, or that just end."""
    error = getattr(sys, "last_value", None)
    if isinstance(error, BaseException):
        lost = _lost_rank(error, watch.rank)
        _tell_raised(watch, error, lost)
        if lost < 0:
            watch.tell_ranks(error)
    else:
        loss = first_loss()
        lost = -1 if loss is None else watch.number_of(loss.rank)
        watch.tell({"event": "leaving", "lost": lost})


def _tell_raised(watch: _Watch, error: BaseException, lost: int) -> None:
    frame = users_frame(error)
    watch.tell(
        {
            "event": "raised",
            "type": type(error).__name__,
            "message": message_of(error)[:_LONGEST_TEXT],
            "place": "" if frame is None else f"{frame.filename}:{frame.lineno}, in {frame.name}",
            "code": "" if frame is None else (frame.line or "")[:_LONGEST_TEXT],
            "lost": watch.number_of(lost),
        }
    )
    watch.has_told, watch.lost = True, lost


def _lost_rank(error: BaseException, own: int) -> int:
    """The rank whose end made this one raise `error`, or -1 if `error` is this rank's own."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        each = waiting.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, PeerLost | Aborted) and each.rank not in (-1, own):
            return each.rank
        waiting += [each.__cause__, each.__context__]
    # An error may have lost its chain on the way through a framework or another thread.
    loss = first_loss()
    is_foreign = loss is not None and not isinstance(error, RabitError)
    return loss.rank if loss is not None and is_foreign and loss.rank != own else -1
