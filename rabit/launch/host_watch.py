"""HostWatch: looks for the hosts of a job again and again while it runs."""

from __future__ import annotations

import os
import queue
import re
import selectors
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType

from rabit.errors import RabitError
from rabit.launch.hosts import Host
from rabit.launch.resolution import resolved
from rabit.threads import start_thread

__all__ = ["HostWatch"]

# Of names that only ssh knows (an alias in its configuration), which no resolver ever does.
_AGAIN_S = 30.0


class HostWatch:
    """A thread that looks, since a script may take its time; its news comes through a selector.

    look: gives the current hosts, or raises RabitError; their names are looked up here as well.
    changed: called with hosts that differ from those before.
    failed: called with an error's text that differs from the one before in more than numbers, such as a time.
    The thread that serves the selector calls both.  As a context manager it looks until the block ends.
    """

    def __init__(
        self,
        look: Callable[[], Sequence[Host]],
        hosts: Sequence[Host],
        interval_s: float,
        selector: selectors.BaseSelector,
        changed: Callable[[Sequence[Host]], None],
        failed: Callable[[str], None],
    ) -> None:
        self._look = look
        self._hosts = list(hosts)
        self._named: list[Host] = []  # as `look` has given them
        self._again_at = 0.0
        self._interval_s = interval_s
        self._selector = selector
        self._changed = changed
        self._failed = failed
        self._error = ""
        self._news: queue.SimpleQueue[Sequence[Host] | str] = queue.SimpleQueue()
        self._wants_stop = threading.Event()
        self._read_end, self._write_end = os.pipe()

    def __enter__(self) -> HostWatch:
        start_thread(self._run, "host-watch")
        self._selector.register(self._read_end, selectors.EVENT_READ, self._tell)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._selector.unregister(self._read_end)
        # A script that hangs is not waited for: the thread ends with its script, and tells nobody.
        self._wants_stop.set()

    def _run(self) -> None:
        while not self._wants_stop.wait(self._interval_s):
            try:
                found = self._find()
            except RabitError as error:
                self._report_error(str(error))
                continue
            except Exception as error:  # A fault in there must not end the watch, of all things silently.
                self._report_error(f"{type(error).__name__}: {error}")
                continue
            self._error = ""
            if found != self._hosts:
                self._hosts = found
                self._put(found)
        os.close(self._write_end)
        os.close(self._read_end)

    def _find(self) -> list[Host]:
        """The hosts there are.  A name is looked up when it is new, and once in a while until there is an address."""
        named, now = list(self._look()), time.monotonic()
        has_all = all(host.is_here or host.address for host in self._hosts)
        if named == self._named and (has_all or now < self._again_at):
            return self._hosts
        self._named, self._again_at = named, now + _AGAIN_S
        return resolved(named, self._hosts)

    def _report_error(self, text: str) -> None:
        kind = re.sub(r"\d+", "", text)
        if kind != self._error:
            self._error = kind
            self._put(text)

    def _put(self, news: Sequence[Host] | str) -> None:
        self._news.put(news)
        os.write(self._write_end, b"!")

    def _tell(self) -> None:
        os.read(self._read_end, 1)
        news = self._news.get_nowait()
        if isinstance(news, str):
            self._failed(news)
        else:
            self._changed(news)
