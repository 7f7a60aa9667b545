"""Alarms: what is to happen at a certain time, by name."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Alarms"]


class Alarms:
    """One thread only.  Times are of time.monotonic()."""

    def __init__(self) -> None:
        self._set: dict[str, tuple[float, Callable[[], None]]] = {}

    def set(self, name: str, at: float, action: Callable[[], None]) -> None:
        """`action` happens at this time; it replaces another one of this name."""
        self._set[name] = at, action

    def put_off(self, name: str, at: float, action: Callable[[], None]) -> None:
        """As `set`, but not earlier than the alarm of this name that is set."""
        self.set(name, max(at, self._set[name][0]) if name in self._set else at, action)

    def clear(self, *names: str) -> None:
        """These do not happen."""
        for name in names:
            self._set.pop(name, None)

    def is_set(self, name: str) -> bool:
        return name in self._set

    def due(self) -> float | None:
        """When the first one is due; None: none is set."""
        return min((at for at, _ in self._set.values()), default=None)

    def ring(self, now: float) -> None:
        """Lets happen what is due, each once."""
        for name, (at, action) in sorted(self._set.items(), key=lambda item: item[1][0]):
            if at <= now and name in self._set:
                del self._set[name]
                action()
