"""A signal ends a long measurement on rank 0, which then keeps what there is, and the others follow it."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["Interrupted", "Signals", "interruptions"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_AGAIN_S = 0.01


class Interrupted(BaseException):
    """A signal has come.  Not an Exception: code that handles those must not take it for a failure."""

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.signum = signum


class Signals:
    """Which signal has come to this rank; 0: none."""

    def __init__(self) -> None:
        self.signum = 0

    @property
    def status(self) -> int:
        """Of a process that ends by it, as a shell has it."""
        return 128 + self.signum


@contextmanager
def interruptions(rank: int) -> Iterator[Signals]:
    """Until the end of the block, the first SIGINT or SIGTERM raises Interrupted on rank 0.

    On the others it is noted only: a launcher signals all ranks at once, and one that ended before
    rank 0 has heard of it would be a loss there.  Later ones have no effect in the block: they would
    hit what is done about the first.  One that falls into a __del__, where Python drops exceptions, is
    raised again.  Main thread only.
    """
    found = Signals()
    earlier_hook = sys.unraisablehook

    def hear(signum: int, _: FrameType | None) -> None:
        if found.signum:
            return
        found.signum = signum
        if rank == 0:
            raise Interrupted(signum)

    def hear_again(*_: object) -> None:
        raise Interrupted(found.signum)

    def take_dropped(dropped: sys.UnraisableHookArgs) -> None:
        if isinstance(dropped.exc_value, Interrupted):
            signal.setitimer(signal.ITIMER_REAL, _AGAIN_S)  # When this has returned.
        else:
            earlier_hook(dropped)

    earlier = {each: signal.signal(each, hear) for each in _SIGNALS}
    earlier[signal.SIGALRM] = signal.signal(signal.SIGALRM, hear_again)
    sys.unraisablehook = take_dropped
    try:
        yield found
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        sys.unraisablehook = earlier_hook
        for number, handler in earlier.items():
            signal.signal(number, handler)
