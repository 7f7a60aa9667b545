"""Replica: one of several stores, asked by a thread of its own, so that a silent one holds up no one."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from typing import Protocol

from rabit.errors import PeerLost, RabitError, TimedOut
from rabit.rendezvous.store_client import Versioned
from rabit.threads import start_thread

__all__ = ["MARK", "Answer", "Client", "Replica", "read"]

# Whoever starts a store sets it there once.  One that comes back without what it held has none, and
# would tell of promises that it does not remember: it is not asked any more.
MARK = "replica"
# A question that waits for so long stands for all that come after it.
_STUCK_S = 1.0
# After a failure no one asks for so long.
_PAUSE_S = 2.0
# No key is changed this often: to swap from this version is to read.
_NEVER = (1 << 64) - 1


class Client(Protocol):
    """A store by itself; see StoreClient."""

    def set(self, key: str, value: bytes) -> None:
        """Gives `key` this value."""

    def watch(self, key: str, seen: int, timeout: float) -> Versioned:
        """What `key` holds as soon as its version is later than `seen`."""

    def compare_and_set(self, key: str, version: int, value: bytes) -> tuple[bool, Versioned]:
        """Gives `key` this value if it has `version` still."""

    def close(self) -> None:
        """Disconnects."""


class Answer:
    """What a replica has answered: a value, or the error in place of it."""

    def __init__(self, index: int, value: object = None, error: BaseException | None = None) -> None:
        self.index = index
        self.value = value
        self.error = error


_Task = tuple[Callable[[Client], object], Callable[[Answer], None]]


class Replica:
    """Thread-safe.  connect: gives a client, or raises RabitError after a second or so."""

    def __init__(self, index: int, address: str, connect: Callable[[], Client]) -> None:
        self.index = index
        self.address = address
        self._connect = connect
        self._client: Client | None = None
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._began: list[float] = []  # of tasks that are not done
        self._failed: tuple[float, RabitError] | None = None
        # A daemon: the end of the process does not wait for a store that is silent.
        self._thread = start_thread(self._run, f"replica-{index}")

    def ask(self, task: Callable[[Client], object], tell: Callable[[Answer], None]) -> None:
        """Has `task` done, in order, and its result reported by the replica's thread."""
        now = time.monotonic()
        with self._lock:
            is_stuck = bool(self._began) and now - self._began[0] > _STUCK_S
            if not is_stuck:
                self._began.append(now)
        if is_stuck:
            error = TimedOut(f"the store at {self.address} has not answered for {_STUCK_S:g} s")
            tell(Answer(self.index, error=error))
            return
        self._tasks.put((task, tell))

    def client(self) -> Client | None:
        """To wait at; None: there is no connection now."""
        return self._client

    def close(self) -> None:
        """Disconnects when the last question is answered.  Idempotent."""
        self._tasks.put(None)

    def _run(self) -> None:
        while (each := self._tasks.get()) is not None:
            task, tell = each
            answer = self._do(task)
            with self._lock:
                self._began.pop(0)
            tell(answer)
        # Who still waits at this store holds the client, which ends with its last holder.
        self._client = None

    def _do(self, task: Callable[[Client], object]) -> Answer:
        if self._failed is not None and time.monotonic() - self._failed[0] < _PAUSE_S:
            return Answer(self.index, error=self._failed[1])
        try:
            if self._client is None:
                self._client = self._connected()
            value = task(self._client)
            self._failed = None
            return Answer(self.index, value)
        except RabitError as error:
            self._client = None
            self._failed = time.monotonic(), error
            return Answer(self.index, error=error)
        except Exception as error:  # Of the task: raised where it was asked for.
            return Answer(self.index, error=error)

    def _connected(self) -> Client:
        client = self._connect()
        if read(client, MARK).version == 0:
            with contextlib.suppress(RabitError):
                client.close()
            raise PeerLost(
                f"the store at {self.address} was started again and has lost what it held, so its answers "
                "do not count. The job continues with the other stores."
            )
        return client


def read(client: Client, key: str) -> Versioned:
    """What `key` holds now; version 0: nothing.  Never waits for a value.

    A watch that ends without one may also have met a store that does not answer.
    """
    _, held = client.compare_and_set(key, _NEVER, b"")
    return held
