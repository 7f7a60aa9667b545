"""Lines that a program writes over and over, such as progress bars.

On a terminal each rank has one line at the bottom that is redrawn in place.  Elsewhere, where a
line cannot be taken back, its state is written now and then, and when it is complete.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["SPARSE_S", "Bars", "last_state", "rewritten_lines"]

# Between two states of one line where it cannot be redrawn, and between two drawings where it can.
SPARSE_S = 10.0
_REDRAW_S = 0.1
_SPARE_COLUMNS = 1  # A terminal may wrap a line that fills it.
_MOVES = re.compile(rb"\x1b\[[0-9;?]*[A-Za-ln-z]")  # All but colours, which end in m.
_ESCAPES = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")


def last_state(text: bytes) -> bytes:
    """What a line shows whose beginning has been rewritten after each carriage return."""
    states = [part for part in _MOVES.sub(b"", text).split(b"\r") if part]
    return states[-1] if states else b""


def rewritten_lines(lines: bytes) -> bytes:
    """Whole lines; those that were rewritten with their last state alone.

    A single carriage return within a line is not a bar, and perhaps not even text: it stays.
    """
    if b"\r" not in lines:
        return lines
    return b"\n".join(
        last_state(part) if part.startswith(b"\r") or part.count(b"\r") > 1 else part
        for part in lines.split(b"\n")
    )


@dataclass
class _Bar:
    text: bytes
    written: bytes  # the state that has been written where bars are not redrawn
    due: float


class Bars:
    """The lines that are being rewritten.  One thread only.

    write: writes to the terminal or file.  size: columns and rows of the terminal, or None where
    lines are not redrawn.  prefix: of the lines of a rank, and how many columns it takes.
    """

    def __init__(
        self,
        write: Callable[[bytes], None],
        size: Callable[[], tuple[int, int]] | None,
        prefix: Callable[[int], tuple[bytes, int]],
    ) -> None:
        self._write = write
        self._size = size
        self._prefix = prefix
        self._bars: dict[tuple[int, int], _Bar] = {}
        self._drawn = 0  # lines at the bottom of the terminal
        self._redraw_at = math.inf

    def __len__(self) -> int:
        return len(self._bars)

    def show(self, rank: int, stream: int, text: bytes, now: float) -> None:
        """The line of `rank` on this stream now reads `text`."""
        bar = self._bars.get((rank, stream))
        if bar is None:
            self._bars[rank, stream] = _Bar(text, b"", now + SPARSE_S)
        else:
            bar.text = text
        if self._size is not None:
            self._redraw_at = min(self._redraw_at, now + _REDRAW_S)

    def end(self, rank: int, stream: int) -> None:
        """The line is complete: it will be written as any other."""
        if self._bars.pop((rank, stream), None) is not None:
            self.erase()

    def erase(self) -> None:
        """Takes the drawn lines back, so that others can be written; `tick` draws them again."""
        if not self._drawn:
            return
        up = b"\x1b[%dA" % (self._drawn - 1) if self._drawn > 1 else b""
        self._write(b"\r" + up + b"\x1b[J")
        self._drawn = 0
        if self._bars:
            self._redraw_at = -math.inf

    def tick(self, now: float) -> None:
        """Draws or writes what is due."""
        if self._size is None:
            self._write_due(now)
        elif now >= self._redraw_at:
            self.erase()
            self._redraw_at = math.inf
            self._draw(*self._size())

    def due(self) -> float | None:
        """When `tick` has something to do, as time.monotonic(), or None."""
        if self._size is not None:
            return None if math.isinf(self._redraw_at) and self._redraw_at > 0 else self._redraw_at
        waiting = [bar.due for bar in self._bars.values() if bar.text != bar.written]
        return min(waiting, default=None)

    def _write_due(self, now: float) -> None:
        for (rank, _), bar in self._bars.items():
            if now >= bar.due and bar.text != bar.written:
                self._write(self._prefix(rank)[0] + bar.text + b"\n")
                bar.written, bar.due = bar.text, now + SPARSE_S

    def _draw(self, columns: int, rows: int) -> None:
        lines = []
        for (rank, _), bar in sorted(self._bars.items())[: max(1, rows - 1)]:
            prefix, width = self._prefix(rank)
            room = max(1, columns - width - _SPARE_COLUMNS)
            text = _ESCAPES.sub(b"", bar.text).decode("utf-8", "replace")
            lines.append(prefix + text.expandtabs()[:room].encode())
        self._write(b"\n".join(lines))
        self._drawn = len(lines)
