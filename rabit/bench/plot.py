"""The picture of a tuning run, as SVG: time and bandwidth against size, one row for each kind."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

__all__ = ["draw"]

Row = Mapping[str, Any]

# Distinct also for people who do not see red and green apart (Okabe and Ito, 2008).
_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#8c6d1f", "#7f3c8d",
            "#444444")  # fmt: skip
_USUAL = "#9aa0a6"
# By backend.
_DASHES = ("", "7 3", "1.5 3.5", "9 3 2 3")
_WIDTH, _HEIGHT = 360, 190  # of one panel
_LEFT, _TOP, _GAP_X, _GAP_Y = 70, 92, 84, 66
_LINE, _SIZE, _MARK = 17, 11, 34  # of the legend: a line, its letters, and the sample before them
# Wider than the letters of usual fonts are on the mean, in parts of their size: which font draws the
# text is not known here, and a name that is cut tells nothing.
_LETTER = 0.64
_CAPTION = (
    "Grey: what the job does by itself. A ring is round the fastest at each size; faint lines are "
    "never the fastest."
)


def draw(rows: Sequence[Row], title: str) -> str:
    """The document.  rows: of a route table; the first candidate of each kind is what the job
    chooses by itself, and is drawn as a broad line behind the others.  Winners have a ring."""
    kinds: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        kinds.setdefault((row["kind"], row["type"]), []).append(row)
    looks = _looks([name for found in kinds.values() for name in _candidates(found)[1:]])
    right = _LEFT + 2 * _WIDTH + _GAP_X + 24  # where the legend begins
    names = [name for found in kinds.values() for name in _legend_names(found)]
    width = right + _MARK + math.ceil(max(map(len, names), default=0) * _LETTER * _SIZE)
    height = _TOP + sum(_height(found) + _GAP_Y for found in kinds.values())
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="Helvetica, Arial, sans-serif">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        _text(_LEFT, 30, f"Routes by size: {title}", 17, "start", "#202124"),
        _text(_LEFT, 50, _CAPTION, 11, "start", "#5f6368"),
    ]
    top = _TOP
    for (kind, dtype), found in kinds.items():
        parts += _panels(found, f"{kind}, {dtype}", looks, top)
        parts += _legend(found, looks, right, top + 8)
        top += _height(found) + _GAP_Y
    return "\n".join([*parts, "</svg>"]) + "\n"


class _Look(NamedTuple):
    colour: str
    dash: str  # as stroke-dasharray has it

    def stroke(self, width: float, opacity: float = 1.0) -> str:
        """Attributes of a line."""
        dash = f' stroke-dasharray="{self.dash}"' if self.dash else ""
        return f'stroke="{self.colour}" stroke-width="{width:g}" stroke-opacity="{opacity:g}"{dash}'


_USUAL_LOOK = _Look(_USUAL, "")


def _candidates(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(row["candidate"] for row in rows))


def _legend_names(rows: Sequence[Row]) -> list[str]:
    first, *others = _candidates(rows)
    return [f"{first} by itself", *others]


def _looks(names: Sequence[str]) -> dict[str, _Look]:
    """One look for each candidate, which it keeps from kind to kind."""
    colours = itertools.cycle(_COLOURS)
    dashes = itertools.cycle(_DASHES)
    dash_of: dict[str, str] = {}
    looks: dict[str, _Look] = {}
    for fromkey in dict.fromkeys(names):
        backend = fromkey.partition("/")[0]
        if backend not in dash_of:
            dash_of[backend] = next(dashes)
        looks[fromkey] = _Look(next(colours), dash_of[backend])
    return looks


def _height(rows: Sequence[Row]) -> int:
    """Of the panels of a kind, or of their legend if that has more lines."""
    return max(_HEIGHT, _LINE * len(_candidates(rows)))


def _panels(rows: Sequence[Row], name: str, looks: Mapping[str, _Look], top: int) -> Iterable[str]:
    usual, *others = _candidates(rows)
    winners = {row["candidate"] for row in rows if row["is_winner"]}
    panels = (
        (_LEFT, "p50_us", f"{name}: time", _time_label),
        (_LEFT + _WIDTH + _GAP_X, "busbw", f"{name}: bus bandwidth", _bandwidth_label),
    )
    for left, column, title, label in panels:
        panel = _Panel(left, top, rows, column)
        yield _text(left, top - 10, title, 13, "start", "#202124")
        yield from panel.grid(label)
        yield panel.line(usual, _USUAL_LOOK.stroke(5))
        for other in sorted(others, key=winners.__contains__):
            yield panel.line(other, looks[other].stroke(2, 1.0 if other in winners else 0.45))
        yield from panel.winners({**looks, usual: _USUAL_LOOK})


def _legend(rows: Sequence[Row], looks: Mapping[str, _Look], left: int, top: int) -> Iterable[str]:
    usual = _candidates(rows)[0]
    for place, (each, name) in enumerate(zip(_candidates(rows), _legend_names(rows), strict=True)):
        y = top + _LINE * place
        stroke = _USUAL_LOOK.stroke(5) if each == usual else looks[each].stroke(2.5)
        yield f'<line x1="{left}" y1="{y}" x2="{left + 26}" y2="{y}" {stroke}/>'
        yield _text(left + _MARK, y + 4, name, _SIZE, "start", "#3c4043")


class _Panel:
    """One plot with logarithmic axes."""

    def __init__(self, left: int, top: int, rows: Sequence[Row], column: str) -> None:
        self._left, self._top, self._rows, self._column = left, top, rows, column
        self._x = _Scale([row["bytes"] for row in rows], 2, left, left + _WIDTH)
        self._y = _Scale([row[column] for row in rows], 10, top + _HEIGHT, top)

    def grid(self, label: Any) -> Iterable[str]:
        left, bottom = self._left, self._top + _HEIGHT
        for value in self._y.ticks(6):
            y = self._y(value)
            yield _rule(left, y, left + _WIDTH, y)
            yield _text(left - 8, y + 4, label(value), 10, "end", "#5f6368")
        for value in self._x.ticks(9):
            x = self._x(value)
            yield _rule(x, self._top, x, bottom)
            yield _text(x, bottom + 16, _size_label(value), 10, "middle", "#5f6368")

    def line(self, candidate: str, stroke: str) -> str:
        points = [
            (self._x(row["bytes"]), self._y(row[self._column]))
            for row in sorted(self._rows, key=lambda row: row["bytes"])
            if row["candidate"] == candidate
        ]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        return f'<polyline points="{path}" fill="none" {stroke} stroke-linejoin="round"/>'

    def winners(self, looks: Mapping[str, _Look]) -> Iterable[str]:
        for row in self._rows:
            if row["is_winner"]:
                x, y = self._x(row["bytes"]), self._y(row[self._column])
                yield (
                    f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" stroke="#202124" '
                    f'stroke-width="1.2" fill="{looks[row["candidate"]].colour}"/>'
                )


class _Scale:
    """A logarithmic axis from whole powers to whole powers."""

    def __init__(self, values: Sequence[float], base: int, start: float, end: float) -> None:
        positive = [value for value in values if value > 0] or [1.0]
        self._base = base
        self._low = math.floor(math.log(min(positive), base) + 1e-9)
        self._high = max(self._low + 1, math.ceil(math.log(max(positive), base) - 1e-9))
        self._start, self._end = start, end

    def __call__(self, value: float) -> float:
        share = (math.log(max(value, 1e-12), self._base) - self._low) / (self._high - self._low)
        return self._start + min(1.0, max(0.0, share)) * (self._end - self._start)

    def ticks(self, most: int) -> list[float]:
        step = max(1, -(-(self._high - self._low) // (most - 1)))
        return [float(self._base) ** power for power in range(self._low, self._high + 1, step)]


def _rule(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#e8eaed"/>'


def _text(x: float, y: float, text: str, size: int, anchor: str, colour: str) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" '
        f'fill="{colour}">{escape(text)}</text>'
    )


def _size_label(value: float) -> str:
    for unit, factor in (("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)):
        if value >= factor:
            return f"{value / factor:g} {unit}"
    return f"{value:g}"


def _time_label(microseconds: float) -> str:
    for unit, factor in (("s", 1e6), ("ms", 1e3)):
        if microseconds >= factor:
            return f"{microseconds / factor:g} {unit}"
    return f"{microseconds:g} us"


def _bandwidth_label(value: float) -> str:
    return f"{value:g} GB/s" if value >= 1 else f"{value * 1e3:g} MB/s"
