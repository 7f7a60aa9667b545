"""Threads of this package: a refused one is an error in words, and a call on one can be waited for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from rabit.errors import ResourceExhausted

__all__ = ["SLICE_S", "Call", "start_thread"]

# A signal that comes just before the main thread sleeps does not wake it: it wakes this often, and looks.
SLICE_S = 0.1


def start_thread(run: Callable[[], None], name: str) -> threading.Thread:
    """Starts `run` in a thread that does not keep the process.

    Raises ResourceExhausted when the system allows no further thread.
    """
    thread = threading.Thread(target=run, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        raise ResourceExhausted(
            f"the thread '{name}' cannot be started: {error}. The user or the container has as many "
            "threads and processes as it may have: raise the limit ('ulimit -u', or pids.max of the "
            "container), or start fewer ranks on this host."
        ) from error
    return thread


class Call:
    """One call on a thread of its own, which continues when the exception of a signal ends the wait for it."""

    def __init__(self, make: Callable[[], Any], name: str) -> None:
        self._make = make
        self._result: Any = None
        self.error: BaseException | None = None
        self._is_over = threading.Event()
        start_thread(self._run, name)

    def _run(self) -> None:
        try:
            self._result = self._make()
        except BaseException as error:
            self.error = error
        finally:
            self._is_over.set()

    def wait(self, longest_s: float) -> bool:
        """True as soon as it is over; False if it is not after that time."""
        return self._is_over.wait(longest_s)

    def result(self) -> Any:
        """What it returns or raises; until then whatever the handler of a signal raises."""
        while not self.wait(SLICE_S):
            pass
        if self.error is not None:
            raise self.error
        return self._result
