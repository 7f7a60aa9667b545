"""What a process needs to be a rank or a launcher: standard streams, and a Ctrl-C that is always heard."""

from __future__ import annotations

import _thread
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

__all__ = ["hear_dropped_interrupts", "open_standard_streams"]

_OURS = ("rabit", "rabit_torch", "rabit_mxnet")
_AGAIN_S = 0.01


def hear_dropped_interrupts() -> None:
    """From now on a KeyboardInterrupt that falls into the end of one of our objects comes again, to the main thread.

    Python prints and drops what a `__del__` raises, also where that was no fault of it but the
    handler of a signal which came just then: a program of quick calls, whose handles end all the
    time, would now and then continue after Ctrl-C.
    """
    if getattr(sys.unraisablehook, "__module__", None) != __name__:
        sys.unraisablehook = _Hook(sys.unraisablehook)


class _Hook:
    def __init__(self, earlier: Callable[[Any], object]) -> None:
        self._earlier = earlier

    def __call__(self, dropped: sys.UnraisableHookArgs) -> None:
        package = (getattr(dropped.object, "__module__", None) or "").partition(".")[0]
        if isinstance(dropped.exc_value, KeyboardInterrupt) and package in _OURS:
            # When this has returned, and with it the __del__.  A Thread's start would wait for it, and a second signal
            # would end that wait.
            _thread.start_new_thread(_interrupt, ())
        else:
            self._earlier(dropped)


def _interrupt() -> None:
    """A real signal, for a main thread that sleeps."""
    time.sleep(_AGAIN_S)
    main = threading.main_thread().ident
    if main is not None:  # It has started, as it is Python's own.
        signal.pthread_kill(main, signal.SIGINT)


def open_standard_streams() -> None:
    """From now on they lead nowhere, in this process and its children.

    The descriptor of one that is closed is free, and so the next socket's: what somebody then writes
    to standard output or error would go to another rank.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            found = os.open(os.devnull, os.O_RDWR)  # The lowest that is free.
            if found == descriptor:
                os.set_inheritable(found, True)
            else:  # Another thread has taken it meanwhile.
                os.close(found)
