"""Output: what ranks write, with a prefix, on the launcher's own streams and in files."""

from __future__ import annotations

import math
import os
import re
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from rabit.errors import InvalidArgument
from rabit.launch.nodes.node import STDERR, STDOUT
from rabit.launch.nodes.sink import Sink
from rabit.launch.output.collapse import Collapser, rank_list
from rabit.launch.output.progress import Bars, last_state, rewritten_lines
from rabit.launch.plan import Plan
from rabit.printable import printable

__all__ = ["Output", "OutputFiles", "Style", "tail_text", "wants_colour"]

_TAIL_LINES = 20
_TAIL_LINE_BYTES = 2048
_LONGEST_PARTIAL_BYTES = 1 << 20
_PARTIAL_WAIT_S = 0.3  # On a terminal, where someone may wait for a prompt or a progress bar.
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")  # Colours and movements of a terminal.
_COLOURS = (36, 32, 33, 35, 34, 31, 96, 92, 93, 95, 94, 91)


@dataclass(frozen=True)
class Style:
    """How lines look.  labels: rank -> text in brackets; empty: no brackets."""

    labels: dict[int, str]
    has_timestamps: bool = False
    is_collapsed: bool = False
    has_colour: bool = False
    is_terminal: bool = False
    draws_bars: bool = False  # both streams go to one terminal

    def prefix(self, rank: int) -> bytes:
        if not self.labels[rank]:
            return self.stamp().encode()
        label = f"[{self.labels[rank]}]"
        if self.has_colour:
            label = f"\x1b[{_COLOURS[rank % len(_COLOURS)]}m{label}\x1b[0m"
        return f"{self.stamp()}{label} ".encode()

    def width(self, rank: int) -> int:
        """Columns of the prefix."""
        label = self.labels[rank]
        return len(self.stamp()) + (len(label) + len("[] ") if label else 0)

    def stamp(self) -> str:
        if not self.has_timestamps:
            return ""
        now = time.time()
        whole = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now))
        return f"{whole}.{int(now % 1 * 1000):03d} "


class OutputFiles:
    """rank.N/stdout and rank.N/stderr below a folder, and server.N/…  Padded so that names sort."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        self._folder = folder
        self._width = len(str(plan.processes - 1))
        self._files: dict[tuple[int, int], BinaryIO] = {}
        self.problem = ""
        try:
            for rank in range(plan.processes):
                self._open(rank, plan.name_of(rank))
        except OSError as error:
            self.close()
            raise InvalidArgument(
                f"--output-filename {folder}: {error.strerror or error} ({error.filename}). "
                "Choose a folder that can be written."
            ) from error

    def add(self, rank: int) -> None:
        """Files of a rank that comes later."""
        try:
            self._open(rank, f"rank {rank}")
        except OSError as error:
            self.problem = self.problem or (
                f"the output of rank {rank} has no file: {error.strerror} ({error.filename}). From there "
                "on nothing was written to files; free space or choose another folder."
            )

    def _open(self, rank: int, name: str) -> None:
        kind, _, number = name.partition(" ")
        place = self._folder / f"{kind}.{number:0>{self._width}}"
        place.mkdir(parents=True, exist_ok=True)
        for stream, file in ((STDOUT, "stdout"), (STDERR, "stderr")):
            self._files[rank, stream] = (place / file).open("wb", buffering=0)

    def write(self, rank: int, stream: int, data: bytes) -> None:
        if self.problem:
            return
        try:
            self._files[rank, stream].write(data)
        except OSError as error:
            self.problem = (
                f"the output of rank {rank} cannot be written to its file any more: "
                f"{error.strerror}. The job continues; free space or choose another folder."
            )

    def close(self) -> None:
        for file in self._files.values():
            file.close()


class _Stream:
    """One stream of one rank: the beginning of a line whose end has not come yet."""

    def __init__(self) -> None:
        self.partial = b""
        self.partial_since = 0.0


class Output:
    """Gathers, prefixes and writes.  One thread only; never waits."""

    def __init__(self, style: Style, sinks: Mapping[int, Sink], files: OutputFiles | None) -> None:
        self._style = style
        self._sinks = sinks
        self._files = files
        self._streams: dict[tuple[int, int], _Stream] = {}
        self._tails: dict[int, deque[bytes]] = {}
        self._open_line: tuple[int, int] | None = None
        self._collapser = Collapser(len(style.labels)) if style.is_collapsed else None
        self._bars = {each: self._make_bars(sinks[each]) for each in (STDOUT, STDERR)}
        if style.draws_bars:
            self._bars[STDOUT] = self._bars[STDERR]

    def _make_bars(self, sink: Sink) -> Bars:
        return Bars(
            sink.write,
            _terminal_size if self._style.draws_bars else None,
            lambda rank: (self._style.prefix(rank), self._style.width(rank)),
        )

    def add(self, rank: int, label: str) -> None:
        """One more process writes; label: as those of the style."""
        self._style.labels[rank] = label
        if self._files is not None:
            self._files.add(rank)

    def feed(self, rank: int, stream: int, data: bytes) -> None:
        """`rank` wrote `data`; lines may begin in one call and end in another."""
        if self._files is not None:
            self._files.write(rank, stream, data)
        place = self._streams.setdefault((rank, stream), _Stream())
        self._remember(rank, place.partial, data)
        end = data.rfind(b"\n") + 1
        if end:
            self._bars[stream].end(rank, stream)
            self._emit(rank, stream, rewritten_lines(place.partial + data[:end]))
            place.partial = data[end:]
            place.partial_since = time.monotonic()
        else:
            if not place.partial:
                place.partial_since = time.monotonic()
            place.partial += data
        if b"\r" in place.partial and self._collapser is None:
            state = last_state(place.partial)
            place.partial = b"\r" + state
            self._bars[stream].show(rank, stream, state, time.monotonic())
        elif len(place.partial) >= _LONGEST_PARTIAL_BYTES:
            self._emit_partial(rank, stream, place)

    def close(self, rank: int, stream: int) -> None:
        """Nothing more comes; a last line without an end is written with one."""
        place = self._streams.pop((rank, stream), None)
        if place is None:
            return
        self._bars[stream].end(rank, stream)
        is_open = self._open_line == (rank, stream)
        if place.partial or is_open:
            self._emit(rank, stream, rewritten_lines(place.partial + b"\n"))

    def tick(self, now: float) -> None:
        """Writes lines that have waited long enough for their end or for other ranks."""
        if self._collapser is not None:
            self._write_collapsed(now)
        # A line without an end would stand where the bars are drawn.
        if self._collapser is None and self._style.is_terminal and not self._has_bars():
            self._write_partials(now)
        for bars in self._bars.values():
            if len(bars) and self._style.draws_bars:
                self._end_open_line()
            bars.tick(now)

    def _has_bars(self) -> bool:
        return any(len(bar) for bar in self._bars.values())

    def _write_partials(self, now: float) -> None:
        for (rank, stream), place in self._streams.items():
            if place.partial and now - place.partial_since >= _PARTIAL_WAIT_S:
                self._emit_partial(rank, stream, place)

    def due(self) -> float | None:
        """When `tick` has something to do, as time.monotonic(), or None."""
        if self._collapser is not None:
            return self._collapser.due
        times = [each for each in (bars.due() for bars in self._bars.values()) if each is not None]
        if self._style.is_terminal and not self._has_bars():
            waiting = (stream.partial_since for stream in self._streams.values() if stream.partial)
            times += [each + _PARTIAL_WAIT_S for each in waiting]
        return min(times, default=None)

    def finish(self) -> None:
        """Ends every line.  No more output may follow."""
        for rank, stream in list(self._streams):
            self.close(rank, stream)
        if self._collapser is not None:
            self._write_collapsed(math.inf)
        if self._files is not None:
            self._files.close()

    def end_line(self) -> None:
        """Makes sure that what is written next starts a line."""
        for bars in self._bars.values():
            bars.erase()
        self._end_open_line()

    def _end_open_line(self) -> None:
        if self._open_line is not None:
            self._sinks[self._open_line[1]].write(b"\n")
            self._open_line = None

    def tail(self, rank: int) -> list[str]:
        """The last lines of `rank`, both streams, without control characters."""
        return [tail_text(line) for line in self._tails.get(rank, ())]

    def _remember(self, rank: int, partial: bytes, data: bytes) -> None:
        tail = self._tails.setdefault(rank, deque(maxlen=_TAIL_LINES))
        if partial and tail:
            tail.pop()
            partial = partial[-_TAIL_LINE_BYTES:]
        else:
            partial = b""
        # Only the end can matter, and splitting a long text costs time.
        lines = (partial + data[-_TAIL_LINES * _TAIL_LINE_BYTES :]).split(b"\n")
        if not lines[-1]:
            lines.pop()
        tail.extend(line[:_TAIL_LINE_BYTES] for line in lines[-_TAIL_LINES:])

    def _emit(self, rank: int, stream: int, lines: bytes) -> None:
        """Writes whole lines."""
        if self._collapser is not None:
            now = time.monotonic()
            for line in lines[:-1].split(b"\n"):
                self._collapser.add(rank, stream, line, now)
            self._write_collapsed(now)
            return
        for bars in self._bars.values():
            bars.erase()
        prefix = self._style.prefix(rank)
        body = lines[:-1].replace(b"\n", b"\n" + prefix) + b"\n"
        self._sinks[stream].write(self._start(rank, stream, prefix) + body)
        self._open_line = None

    def _emit_partial(self, rank: int, stream: int, place: _Stream) -> None:
        if self._collapser is not None:
            # Its end will come as a line of its own: nothing may grow without bound.
            self._collapser.add(rank, stream, place.partial, time.monotonic())
        else:
            prefix = self._style.prefix(rank)
            self._sinks[stream].write(self._start(rank, stream, prefix) + place.partial)
            self._open_line = (rank, stream)
        place.partial = b""

    def _start(self, rank: int, stream: int, prefix: bytes) -> bytes:
        if self._open_line == (rank, stream):
            return b""
        self.end_line()
        return prefix

    def _write_collapsed(self, now: float) -> None:
        assert self._collapser is not None
        for each in self._collapser.take(now):
            ranks = rank_list(each.ranks, len(self._style.labels))
            self._sinks[each.stream].write(
                f"{self._style.stamp()}{ranks}: ".encode() + each.line + b"\n"
            )


def tail_text(line: bytes) -> str:
    """`line` as text that cannot steer a terminal."""
    text = _ESCAPES.sub("", line.decode("utf-8", "backslashreplace")).rstrip("\r")
    # Of a progress bar, the last state is what the user saw.
    text = text.rpartition("\r")[2].expandtabs()
    return printable(text)


def _terminal_size() -> tuple[int, int]:
    try:
        size = os.get_terminal_size(2)
        return size.columns, size.lines
    except OSError:
        return 80, 24  # It has gone: nobody sees what is drawn.


def wants_colour(descriptor: int, environ: Mapping[str, str]) -> bool:
    """True on a terminal that is not dumb, unless NO_COLOR is set."""
    return (
        not environ.get("NO_COLOR")
        and environ.get("TERM", "") not in ("", "dumb")
        and os.isatty(descriptor)
    )
