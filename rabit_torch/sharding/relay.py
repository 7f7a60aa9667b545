"""The second mean of state that is divided inside of groups: over the copies of a part."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

__all__ = ["Relay"]


class Relay:
    """Starts the mean over copies of each flat whose mean over parts has arrived, while others are on their way."""

    def __init__(self) -> None:
        self._sent: list[Any] = []

    def add(self, storage: Any) -> None:
        """The last gradients of `storage` in this step have been sent. Does not block."""
        self._sent.append(storage)
        self._sent = [storage for storage in self._sent if not storage.relays(waits=False)]

    def finish(self, storages: Iterable[Any]) -> None:
        """Starts those that have not been started."""
        self._sent = []
        for storage in storages:
            storage.relays(waits=True)
