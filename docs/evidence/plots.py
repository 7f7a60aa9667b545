"""Bar plots as SVG text: legible on light and dark pages, and in the column of a page."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from xml.sax.saxutils import escape

WIDTH = 720
_BAR, _GAP, _TOP = 16, 12, 34
_COLOURS = ("#2f81f7", "#d97706", "#16a34a", "#c026d3", "#0e7490", "#b91c1c", "#737373")
_STYLE = """
  svg { color: #1f2328; font: 14px sans-serif }
  text { fill: currentColor }
  .axis, .mark { stroke: currentColor; stroke-opacity: 0.5 }
  .mark { stroke-dasharray: 4 3 }
  @media (prefers-color-scheme: dark) { svg { color: #e6edf3 } }
"""
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "B": 1.0, "kB": 1e3, "KiB": 1024.0, "MB": 1e6, "MiB": 2.0**20, "GB": 1e9}
_NUMBER = re.compile("[-\N{MINUS SIGN}]?\\d[\\d,]*\\.?\\d*")


def number(cell: object) -> float | None:
    """The first number of a cell, in the unit of its kind: "1.68 ms" is 0.00168; None where there is none."""
    if isinstance(cell, int | float):
        return float(cell)
    found = _NUMBER.search(str(cell))
    if not found:
        return None
    unit = re.match(r"\s*(\w+)", str(cell)[found.end() :])
    factor = _UNITS.get(unit[1], 1.0) if unit else 1.0
    return float(found[0].replace(",", "").replace("\N{MINUS SIGN}", "-")) * factor


def bars(
    title: str,
    labels: Sequence[str],
    series: dict[str, Sequence[object]],
    *,
    log: bool = False,
    mark: float | None = None,
) -> str:
    """An SVG document with a group of horizontal bars for each label.

    series: cells by name; the text of a cell stands at the end of its bar.  log: lengths are logarithms.  mark: a
    value with a line through all bars.
    """
    values = [number(cell) for cells in series.values() for cell in cells]
    known = [value for value in values if value is not None and (value > 0 or not log)]
    if not known:
        raise ValueError(f"{title}: no cell of the plot has a number")
    left = 14 + max(text_width(label) for label in labels)
    right = WIDTH - 14 - max(text_width(str(cell)) for cells in series.values() for cell in cells)
    scale = Scale(min(known), max([*known, mark or 0]), left, right, log)
    height = _TOP + len(labels) * (_BAR * len(series) + _GAP) + 6
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" role="img">',
        f"<title>{escape(title)}</title><style>{_STYLE}</style>",
        *legend(list(series)),
    ]
    y = float(_TOP)
    for place, label in enumerate(labels):
        middle = y + _BAR * len(series) / 2 + 5
        parts.append(f'<text x="{left - 8}" y="{middle:.0f}" text-anchor="end">{escape(label)}</text>')
        for colour, cells in zip(_COLOURS, series.values(), strict=False):
            value = number(cells[place])
            end = scale.at(value)
            if value is not None:
                place_and_size = f'x="{left}" y="{y + 1:.0f}" width="{max(end - left, 1):.1f}" height="{_BAR - 3}"'
                parts.append(f'<rect {place_and_size} fill="{colour}"/>')
            parts.append(f'<text x="{end + 5:.1f}" y="{y + 12:.0f}">{escape(str(cells[place]))}</text>')
            y += _BAR
        y += _GAP
    parts.append(line("axis", left, height))
    if mark is not None:
        parts.append(line("mark", scale.at(mark), height))
    return "\n".join([*parts, "</svg>"]) + "\n"


class Scale:
    """Where a value lies between left and right; of logarithms from half of the smallest value on."""

    def __init__(self, least: float, most: float, left: float, right: float, log: bool) -> None:
        self._log = log
        self._first = math.log10(least / 2) if log else 0.0
        self._last = math.log10(most) if log else most
        self._left, self._right = left, right

    def at(self, value: float | None) -> float:
        if value is None or value <= 0:
            return self._left
        place = math.log10(value) if self._log else value
        return self._left + (self._right - self._left) * (place - self._first) / (self._last - self._first)


def legend(names: Sequence[str]) -> list[str]:
    parts, x = [], 4
    for colour, name in zip(_COLOURS, names, strict=False):
        parts.append(f'<rect x="{x}" y="6" width="12" height="12" fill="{colour}"/>')
        parts.append(f'<text x="{x + 17}" y="17">{escape(name)}</text>')
        x += 34 + text_width(name)
    return parts


def line(kind: str, x: float, height: float) -> str:
    return f'<line class="{kind}" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 4}" y2="{height - 6}"/>'


def text_width(text: str) -> int:
    """In pixels, rather too many."""
    return round(8.3 * len(text))
