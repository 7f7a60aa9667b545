"""Progress: how far a long measurement is, on one line that is written again and again."""

from __future__ import annotations

from typing import TextIO

__all__ = ["Progress"]

_WIDTH = 30


class Progress:
    """A bar with an estimate of the remaining time; silent without a stream."""

    def __init__(self, steps: int, stream: TextIO | None) -> None:
        self._steps = steps
        self._stream = stream

    def show(self, done: int, doing: str, left_s: float) -> None:
        """`done` steps are over, `doing` is next, and all of it will take `left_s` seconds more."""
        filled = _WIDTH * done // self._steps
        bar = "#" * filled + "." * (_WIDTH - filled)
        self._write(f"\r[{bar}] {done}/{self._steps} {doing:<32} about {_time(left_s)} left ")

    def end(self, done: int, took_s: float) -> None:
        """It is over, after `done` steps."""
        filled = _WIDTH * done // self._steps
        self._write(
            f"\r[{'#' * filled + '.' * (_WIDTH - filled)}] {done}/{self._steps} in {_time(took_s)}{' ' * 40}\n"
        )

    def _write(self, text: str) -> None:
        if self._stream is not None:
            self._stream.write(text)
            self._stream.flush()


def _time(seconds: float) -> str:
    whole = round(seconds)
    return f"{whole} s" if whole < 60 else f"{whole // 60} min {whole % 60:02d} s"
