"""Signals as events of a selector loop."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

__all__ = ["PASSED_ON", "TERMINATING", "handle_signals"]

TERMINATING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)


@contextlib.contextmanager
def handle_signals(
    selector: selectors.BaseSelector, handle: Callable[[int], None]
) -> Iterator[None]:
    """Within the block, signals reach `handle`, called from the loop over `selector`.

    A signal that is ignored on entry, as by nohup, stays ignored; one that is blocked, which processes inherit
    as well, is heard here and by those that this thread starts.  Outside the main thread, which alone may
    handle signals, none reaches `handle`.
    """
    with _handlers(selector, handle):
        blocked = signal.pthread_sigmask(signal.SIG_UNBLOCK, (*TERMINATING, *PASSED_ON, signal.SIGCHLD))
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


@contextlib.contextmanager
def _handlers(
    selector: selectors.BaseSelector, handle: Callable[[int], None]
) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    read_end, write_end = os.pipe()
    for end in (read_end, write_end):
        os.set_blocking(end, False)
    earlier_wakeup = signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    earlier = {
        each: signal.getsignal(each)
        for each in (*TERMINATING, *PASSED_ON)
        if signal.getsignal(each) != signal.SIG_IGN
    }
    for each in earlier:
        signal.signal(each, _nothing)
    if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:
        # The kernel would forget children as they end, with their status.
        earlier[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, signal.SIG_DFL)

    def read() -> None:
        with contextlib.suppress(BlockingIOError):
            for number in os.read(read_end, 4096):
                if number in earlier and number != signal.SIGCHLD:
                    handle(number)

    selector.register(read_end, selectors.EVENT_READ, read)
    try:
        yield
    finally:
        selector.unregister(read_end)
        for each, handler in earlier.items():
            signal.signal(each, handler if handler is not None else signal.SIG_DFL)
        signal.set_wakeup_fd(earlier_wakeup)
        os.close(read_end)
        os.close(write_end)


def _nothing(signum: int, frame: FrameType | None) -> None:
    """The number arrives through the wake-up descriptor."""
