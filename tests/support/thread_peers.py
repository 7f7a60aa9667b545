"""Ranks as threads of a test, without an engine: what they tell each other goes through memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from rabit.errors import PeerLost, TimedOut

T = TypeVar("T")


class Room:
    """Where `size` ranks meet."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.changed = threading.Condition()
        self.said: dict[str, dict[int, Any]] = {}
        self.lost: int | None = None

    def lose(self, rank: int) -> None:
        """Whoever waits for `rank` is told that it is gone."""
        with self.changed:
            self.lost = rank
            self.changed.notify_all()


class ThreadPeers:
    """Implements rabit.checkpoint.peers.Peers."""

    def __init__(self, room: Room, rank: int) -> None:
        self.rank = rank
        self.size = room.size
        self._room = room

    def gather(self, name: str, said: Any) -> list[Any]:
        room, deadline = self._room, time.monotonic() + 60
        with room.changed:
            found = room.said.setdefault(name, {})
            found[self.rank] = said
            room.changed.notify_all()
            while len(found) < room.size:
                if room.lost is not None:
                    raise PeerLost(f"rank {room.lost} is gone", room.lost)
                if not room.changed.wait(deadline - time.monotonic()):
                    raise TimedOut(f"{name}: only {sorted(found)} came")
            return [found[rank] for rank in range(room.size)]


def run_threads(size: int, body: Callable[[ThreadPeers], T]) -> list[T | BaseException]:
    """Runs body(peers) on `size` ranks; what each returned or raised.  One that raises is lost."""
    room = Room(size)
    found: dict[int, Any] = {}

    def run(rank: int) -> None:
        try:
            found[rank] = body(ThreadPeers(room, rank))
        except BaseException as error:
            found[rank] = error
            room.lose(rank)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert not any(thread.is_alive() for thread in threads), "a rank hangs"
    return [found[rank] for rank in range(size)]
