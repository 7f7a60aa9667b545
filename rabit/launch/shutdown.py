"""Shutdown: ends the processes of a job, first by asking them."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence

from rabit.launch.alarms import Alarms
from rabit.launch.nodes.node import Node

__all__ = ["Shutdown"]

# After SIGKILL a process vanishes at once; on another host, as soon as the news arrives.
_GIVE_UP_S = 5.0


class Shutdown:
    """One thread only.

    nodes: of the job, which may become more.  grace_s: between asking and killing.  give_up: called when
    processes that were killed are not seen to end.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        alarms: Alarms,
        grace_s: float,
        say: Callable[[str], None],
        give_up: Callable[[], None],
    ) -> None:
        self._nodes = nodes
        self._alarms = alarms
        self._grace_s = grace_s
        self._say = say
        self._give_up = give_up
        self._sent: set[int] = set()
        self.is_stopping = False
        self.is_releasing = False  # servers and newcomers, since all ranks have ended

    @property
    def is_ending(self) -> bool:
        return self.is_stopping or self.is_releasing

    def stop(self, signum: int) -> None:
        """Asks all processes to end by this signal."""
        self.is_stopping = True
        self._alarms.clear("start", "settle")
        self._sent.add(signum)
        self._kill_later()
        for node in self._nodes:
            node.signal(signum, whole_group=True)
            # A stopped (SIGSTOP) process acts on a signal only when it continues.
            node.signal(signal.SIGCONT, whole_group=True)

    def release(self) -> None:
        """Asks servers and newcomers to end, which are all that is left."""
        self.is_releasing = True
        self._kill_later()
        for node in self._nodes:
            node.signal(signal.SIGTERM, whole_group=False)

    def kill(self) -> None:
        """Kills all processes now."""
        self._alarms.clear("kill")
        self._alarms.set("give up", time.monotonic() + _GIVE_UP_S, self._give_up)
        self._sent.add(signal.SIGKILL)
        for node in self._nodes:
            node.signal(signal.SIGKILL, whole_group=True)

    def has_caused(self, status: int) -> bool:
        """True if an end with this status may be due to a signal that was sent here."""
        return any(status in (-signum, 128 + signum) for signum in self._sent)

    def _kill_later(self) -> None:
        def kill() -> None:
            self._say("the grace time is over: killing what is left")
            self.kill()

        self._alarms.set("kill", time.monotonic() + self._grace_s, kill)
