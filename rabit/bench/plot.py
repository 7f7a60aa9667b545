"""The picture of a tuning run, as SVG: time and bandwidth against size, one row for each kind."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

__all__ = ["draw"]

Row = Mapping[str, Any]
Points = list[tuple[float, float]]

# Distinct also for people who do not see red and green apart (Okabe and Ito, 2008).
_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#8c6d1f", "#7f3c8d",
            "#444444")  # fmt: skip
_USUAL = "#9aa0a6"
_WIDTH, _HEIGHT = 360, 190  # of one panel
_LEFT, _TOP, _GAP_X, _GAP_Y, _LEGEND = 70, 64, 84, 66, 190


def draw(rows: Sequence[Row], title: str) -> str:
    """The document.  rows: of a route table; the first candidate of each kind is what the job
    chooses by itself, and is drawn as a broad line behind the others.  Winners have a ring."""
    kinds = list(dict.fromkeys((row["kind"], row["type"]) for row in rows))
    width = _LEFT + 2 * _WIDTH + _GAP_X + _LEGEND
    height = _TOP + len(kinds) * (_HEIGHT + _GAP_Y)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="Helvetica, Arial, sans-serif">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        _text(_LEFT, 30, f"Routes by size: {title}", 17, "start", "#202124"),
    ]
    for place, (kind, dtype) in enumerate(kinds):
        found = [row for row in rows if (row["kind"], row["type"]) == (kind, dtype)]
        top = _TOP + place * (_HEIGHT + _GAP_Y)
        parts += _panels(found, f"{kind}, {dtype}", top)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panels(rows: Sequence[Row], name: str, top: int) -> Iterable[str]:
    candidates = list(dict.fromkeys(row["candidate"] for row in rows))
    colours = {each: _COLOURS[i % len(_COLOURS)] for i, each in enumerate(candidates[1:])}
    colours[candidates[0]] = _USUAL
    right = _LEFT + _WIDTH + _GAP_X
    panels = (
        (_LEFT, "p50_us", f"{name}: time", _time_label),
        (right, "busbw", f"{name}: bus bandwidth", _bandwidth_label),
    )
    for left, column, title, label in panels:
        panel = _Panel(left, top, rows, column)
        yield _text(left, top - 10, title, 13, "start", "#202124")
        yield from panel.grid(label)
        for each in candidates:
            yield panel.line(each, colours[each], 5 if each == candidates[0] else 1.8)
        yield from panel.winners(colours)
    yield from _legend(candidates, colours, right + _WIDTH + 24, top + 8)


def _legend(
    candidates: Sequence[str], colours: Mapping[str, str], left: int, top: int
) -> Iterable[str]:
    for place, each in enumerate(candidates):
        y = top + 18 * place
        width = 5 if place == 0 else 2.5
        yield (
            f'<line x1="{left}" y1="{y}" x2="{left + 22}" y2="{y}" stroke="{colours[each]}" '
            f'stroke-width="{width}" stroke-linecap="round"/>'
        )
        name = f"{each} by itself" if place == 0 else each
        yield _text(left + 30, y + 4, name, 11, "start", "#3c4043")


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

    def line(self, candidate: str, colour: str, width: float) -> str:
        points = [
            (self._x(row["bytes"]), self._y(row[self._column]))
            for row in sorted(self._rows, key=lambda row: row["bytes"])
            if row["candidate"] == candidate
        ]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        return (
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}" '
            'stroke-linejoin="round" stroke-linecap="round"/>'
        )

    def winners(self, colours: Mapping[str, str]) -> Iterable[str]:
        for row in self._rows:
            if row["is_winner"]:
                x, y = self._x(row["bytes"]), self._y(row[self._column])
                yield (
                    f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" stroke="#202124" '
                    f'stroke-width="1.2" fill="{colours[row["candidate"]]}"/>'
                )


class _Scale:
    """A logarithmic axis from whole powers to whole powers."""

    def __init__(self, values: Sequence[float], base: int, start: float, end: float) -> None:
        positive = [each for each in values if each > 0] or [1.0]
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
