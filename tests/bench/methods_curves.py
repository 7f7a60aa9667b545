"""Draws what methods_text.py and methods_text_links.py have measured: docs/evidence/methods_text.svg.

    python tests/bench/methods_curves.py build/text.json docs/evidence/methods_text.svg [--links build/text_links.json]

One panel for each family: loss on unseen text against the bytes that a rank has sent so far, from the first
step to the last, beside the plain mean; with --links as many panels below, against the seconds that these steps
take on such links.  Down is better, left is cheaper.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from harness import Option, case
from methods_text_links import seconds_of

PANEL, HEIGHT, LABELS, GAP, TOP = 215, 220, 150, 14, 34
COLUMNS = 3
LEAST_LOSS, MOST_LOSS = 1.6, 2.9
PANELS_TOP = 78
INK, FAINT, PLAIN = "#222", "#e3e3e3", "#9aa5b1"
COLOURS = (
    "#4c78a8", "#f58518", "#54a24b", "#e45756", "#72b7b2", "#b279a2", "#9d755d", "#ff9da6",
    "#eeca3b", "#2f4b7c", "#a05195", "#665191",
)  # fmt: skip

FAMILIES = {
    "Fewer bits for each entry": (
        ["mean", "qsgd", "nuqsgd", "alq", "amq", "bytegrad", "fp8", "natural", "terngrad", "sign", "onebit"]
    ),
    "Few entries": ["topk", "randomk", "wangni", "dgc", "ef21", "ef21-sgdm", "rowsparse"],
    "Thin factors, islands": ["powersgd", "accordion", "hierarchical", "adasum"],
    "Rare exchanges": ["local", "slowmo", "diloco", "streaming-diloco", "sparseloco"],
    "Momentum that travels": ["onebit-adam", "onebit-lamb", "zero-one-adam", "qadam", "demo"],
    "Neighbours, and by the clock": (["decentralized", "gossip", "lowprecision", "async", "anybatch", "dabmd"]),
}


@dataclass(frozen=True)
class Cost:
    """What lies to the right: logarithmic, from the first of `marks` to `most`.

    of: the cost of a row at every point of its curve.
    """

    unit: str
    marks: tuple[float, ...]
    most: float
    of: Callable[[str, dict[str, Any]], list[float]]


def megabytes(name: str, row: dict[str, Any]) -> list[float]:
    return [sent / 1e6 for sent, _ in row["curve"]]


MEGABYTES = Cost("MB", (1, 10, 100, 1000), 2000, megabytes)


def seconds(links: dict[str, Any]) -> Cost:
    """links: what methods_text_links.py has saved."""

    def of(name: str, row: dict[str, Any]) -> list[float]:
        steps = seconds_of(row["sent"], links["rows"][name])
        return [sum(steps[:look]) for look in row["looks"]]

    return Cost("s", (1, 10, 100), 400, of)


class Panel:
    """The axes of one family at a place of the picture."""

    def __init__(self, left: float, top: float, cost: Cost) -> None:
        self.left, self.top, self.cost = left, top, cost
        self.parts: list[str] = []

    def x(self, cost: float) -> float:
        least, most = self.cost.marks[0], self.cost.most
        share = math.log(max(cost, least) / least) / math.log(most / least)
        return self.left + PANEL * min(share, 1.0)

    def y(self, loss: float) -> float:
        share = (MOST_LOSS - min(max(loss, LEAST_LOSS), MOST_LOSS)) / (MOST_LOSS - LEAST_LOSS)
        return self.top + HEIGHT * share

    def text(self, x: float, y: float, words: str, colour: str = INK, size: int = 10) -> None:
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{colour}">{escape(words)}</text>')

    def path(self, points: list[tuple[float, float]], colour: str, width: float) -> None:
        moves = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.parts.append(
            f'<polyline points="{moves}" fill="none" stroke="{colour}" stroke-width="{width}" stroke-linejoin="round"/>'
        )

    def axes(self, title: str) -> None:
        self.text(self.left, self.top - 12, title, size=13)
        for mark in self.cost.marks:
            x = self.x(mark)
            self.path([(x, self.top), (x, self.top + HEIGHT)], FAINT, 1)
            unit = f" {self.cost.unit}" if mark == self.cost.marks[0] else ""
            self.text(x - 6, self.top + HEIGHT + 12, f"{mark:g}{unit}")
        for loss in (1.75, 2.0, 2.25, 2.5, 2.75):
            self.path([(self.left, self.y(loss)), (self.left + PANEL, self.y(loss))], FAINT, 1)
            self.text(self.left - 26, self.y(loss) + 4, f"{loss:g}")

    def curve(self, name: str, row: dict[str, Any], colour: str, width: float) -> tuple[float, float]:
        pairs = zip(self.cost.of(name, row), row["curve"], strict=True)
        points = [(self.x(cost), self.y(loss)) for cost, (_, loss) in pairs if cost > 0 and loss < 9]
        self.path(points, colour, width)
        x, y = points[-1]
        self.parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>')
        return points[-1]


def drawn(panel: Panel, rows: dict[str, dict[str, Any]]) -> None:
    """The curves, and names beside them that do not cover each other."""
    ends = [
        (panel.curve(name, row, colour, 1.6), f"{name}  {row['loss']:.2f}", colour)
        for (name, row), colour in zip(rows.items(), itertools.cycle(COLOURS), strict=False)
    ]
    at = panel.top - 4
    for (x, y), words, colour in sorted(ends, key=lambda end: end[0][1]):
        at = max(at + 12, min(y + 4, panel.top + HEIGHT - 12 * len(ends)))
        column = panel.left + PANEL + 8
        panel.path([(x, y), (column - 2, at - 4)], colour, 0.4)
        panel.text(column, at, words, colour)


def half(rows: dict[str, dict[str, Any]], cost: Cost, top: float) -> list[str]:
    """The panels of all families against one cost."""
    parts = []
    for number, (title, methods) in enumerate(FAMILIES.items()):
        column, line = number % COLUMNS, number // COLUMNS
        left = 42 + column * (PANEL + LABELS + GAP)
        panel = Panel(left, top + line * (HEIGHT + TOP + 30), cost)
        panel.axes(title)
        panel.curve("mean", rows["mean"], PLAIN, 3)
        of_family = {
            name: row
            for name, row in rows.items()
            if row["text"].partition(":")[0] in methods and name != "mean" and row["loss"] < 9
        }
        drawn(panel, of_family)
        parts += panel.parts
    return parts


def heading(top: float, head: str, note: str) -> list[str]:
    return [
        f'<text x="16" y="{top + y}" font-size="{size}" fill="{INK}">{escape(words)}</text>'
        for y, size, words in ((22, 14, head), (40, 11, note))
    ]


def picture(found: dict[str, Any], links: dict[str, Any] | None) -> str:
    rows = found["rows"]
    lines = -(-len(FAMILIES) // COLUMNS)
    width, height = 42 + COLUMNS * (PANEL + LABELS + GAP), PANELS_TOP + lines * (HEIGHT + TOP + 30)
    parts = heading(
        0,
        f"A transformer of 1.3 million parameters guesses letters, 4 ranks, {found['steps']} steps: loss "
        "(nats a letter) on unseen text against megabytes that a rank has sent",
        f"Grey: the plain mean.  The text's own entropy is {found['entropy']:.2f}.",
    ) + half(rows, MEGABYTES, PANELS_TOP)
    if links is not None:
        missing = sorted(set(rows) - set(links["rows"]))
        if missing:
            raise SystemExit(f"no seconds on links are measured for {', '.join(missing)}")
        parts += heading(
            height,
            f"The same losses against seconds on links of {links['rate'] / 1e6:g} Mbit/s",
            "Each step counts as long as steps of the same method that sent as many bytes took on such links, in a "
            "run of 8 or 20 steps; nothing was trained to the end through them.  Half a processor for each rank.",
        ) + half(rows, seconds(links), height + PANELS_TOP)
        height *= 2
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif">\n<rect width="100%" height="100%" fill="white"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


@case(
    measured=Option("", help="a file of methods_text"),
    picture=Option("text.svg"),
    links=Option("", help="of methods_text_links; left out if it is not there"),
)
def methods_curves(o: Any) -> None:
    """Draws what methods_text and methods_text_links have measured: docs/evidence/methods_text.svg."""
    links = json.loads(Path(o.links).read_text()) if o.links and Path(o.links).exists() else None
    Path(o.picture).write_text(picture(json.loads(Path(o.measured).read_text()), links))
