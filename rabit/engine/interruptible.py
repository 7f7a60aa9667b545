"""Native calls that may wait for a minute, made so that Ctrl-C ends the wait for them at once.

Python runs a signal's handler on the main thread, between two of its steps, and a native call is one.
So another thread makes the call, and the main thread waits for that one in a way that signals end.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

from rabit.threads import Call

__all__ = ["interruptible"]


# (process, what is called) -> the call that is under way.  Main thread only.
_calls: dict[tuple[int, str], Call] = {}


def interruptible(what: str, make: Callable[[], Any]) -> Any:
    """What `make()` returns or raises.

    A call that a signal's exception interrupts continues, because half a start cannot be taken back: the
    other ranks may know of it.  The next one with the same `what` takes it up, unless it has failed.
    """
    if threading.current_thread() is not threading.main_thread():
        return make()  # Signals do not come here.
    key = os.getpid(), what
    call = _calls.get(key)
    if call is None or call.error is not None:
        call = _calls[key] = Call(make, "rabit-call")
    try:
        result = call.result()
    except BaseException as error:
        if error is call.error:
            del _calls[key]
        raise
    del _calls[key]
    return result
