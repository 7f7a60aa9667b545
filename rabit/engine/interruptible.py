"""Native calls that may wait for a minute, made so that Ctrl-C ends the wait for them at once.

Python runs a signal's handler on the main thread, between two of its steps, and a native call is one.
So another thread makes the call, and the main thread waits for that one in a way that signals end.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

__all__ = ["interruptible"]


class _Call:
    """One call on a thread of its own."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._result: Any = None
        self.error: BaseException | None = None
        self._running = threading.Lock()  # Until it is over.
        self._running.acquire()
        # A daemon, since a process that ends has nobody to wait for it.
        threading.Thread(target=self._run, name="rabit-call", daemon=True).start()

    def _run(self) -> None:
        try:
            self._result = self._make()
        except BaseException as error:
            self.error = error
        finally:
            self._running.release()

    def result(self) -> Any:
        """What it returns or raises; until then whatever the handler of a signal raises."""
        with self._running:
            if self.error is not None:
                raise self.error
            return self._result


# (process, what is called) -> the call that is under way.  Main thread only.
_calls: dict[tuple[int, str], _Call] = {}


def interruptible(what: str, make: Callable[[], Any]) -> Any:
    """What `make()` returns or raises.

    A call that a signal's exception interrupts goes on, because half a start cannot be taken back: the
    other ranks may know of it.  The next one with the same `what` takes it up, unless it has failed.
    """
    if threading.current_thread() is not threading.main_thread():
        return make()  # Signals do not come here.
    key = os.getpid(), what
    call = _calls.get(key)
    if call is None or call.error is not None:
        call = _calls[key] = _Call(make)
    try:
        result = call.result()
    except BaseException as error:
        if error is call.error:
            del _calls[key]
        raise
    del _calls[key]
    return result
