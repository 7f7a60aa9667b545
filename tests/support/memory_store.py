"""MemoryStore: the store of a job whose processes are threads of a test."""

from __future__ import annotations

import threading
from collections.abc import Callable

from rabit.errors import TimedOut
from rabit.rendezvous.membership import KEY, Membership
from rabit.rendezvous.store_client import Versioned


class MemoryStore:
    """Holds a membership."""

    def __init__(self, membership: Membership) -> None:
        self._changed = threading.Condition()
        self._held = Versioned(1, membership.to_json())

    def watch(self, key: str, seen: int, timeout: float) -> Versioned:
        assert key == KEY
        with self._changed:
            if not self._changed.wait_for(lambda: self._held.version > seen, timeout):
                raise TimedOut("nothing has changed")
            return self._held

    def compare_and_set(self, key: str, version: int, value: bytes) -> tuple[bool, Versioned]:
        with self._changed:
            is_mine = version == self._held.version
            if is_mine:
                self._held = Versioned(version + 1, value)
                self._changed.notify_all()
            return is_mine, self._held

    def unreached(self) -> list[int]:
        return []

    def change(self, change: Callable[[Membership], Membership]) -> None:
        version, held = self.watch(KEY, 0, 0)
        while True:
            changed = change(Membership.from_json(held))
            is_mine, (version, held) = self.compare_and_set(KEY, version, changed.to_json())
            if is_mine:
                return

