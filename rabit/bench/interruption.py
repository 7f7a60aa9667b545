"""A signal ends a long measurement on rank 0, which then keeps what there is, and the others follow it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["Interrupted", "Signals", "interruptions"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(BaseException):
    """A signal has come.  No Exception, since whoever handles those must not take it for a failure."""

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
    hit what is done about the first.  Main thread only.
    """
    found = Signals()

    def hear(signum: int, _: FrameType | None) -> None:
        if found.signum:
            return
        found.signum = signum
        if rank == 0:
            raise Interrupted(signum)

    earlier = {each: signal.signal(each, hear) for each in _SIGNALS}
    try:
        yield found
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)
