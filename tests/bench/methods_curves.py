"""Draws what methods_text.py has measured: docs/guides/methods/text.svg.

    python tests/bench/methods_curves.py build/methods_text.json docs/guides/methods/text.svg

One panel for each family: loss on unseen text against the bytes that a rank has sent so far, from the first
step to the last, beside the plain mean.  Down is better, left is cheaper.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
from html import escape
from pathlib import Path
from typing import Any

PANEL, HEIGHT, LABELS, GAP, TOP = 215, 220, 150, 14, 34
COLUMNS = 3
LEAST_MB, MOST_MB, LEAST_LOSS, MOST_LOSS = 1.0, 2000.0, 1.6, 2.9
INK, FAINT, PLAIN = "#222", "#e3e3e3", "#9aa5b1"
COLOURS = (
    "#4c78a8", "#f58518", "#54a24b", "#e45756", "#72b7b2", "#b279a2", "#9d755d", "#ff9da6",
    "#eeca3b", "#2f4b7c", "#a05195", "#665191",
)  # fmt: skip

FAMILIES = {
    "Fewer bits for each entry": (
        [
            "mean",
            "qsgd",
            "nuqsgd",
            "alq",
            "amq",
            "bytegrad",
            "fp8",
            "natural",
            "terngrad",
            "sign",
            "onebit",
        ]
    ),
    "Few entries": ["topk", "randomk", "wangni", "dgc", "ef21", "ef21-sgdm", "rowsparse"],
    "Thin factors, islands": ["powersgd", "accordion", "hierarchical", "adasum"],
    "Rare exchanges": ["local", "slowmo", "diloco", "streaming-diloco", "sparseloco"],
    "Momentum that travels": ["onebit-adam", "onebit-lamb", "zero-one-adam", "qadam", "demo"],
    "Neighbours, and by the clock": (
        ["decentralized", "gossip", "lowprecision", "async", "anybatch", "dabmd"]
    ),
}


class Panel:
    """The axes of one family at a place of the picture."""

    def __init__(self, left: float, top: float) -> None:
        self.left, self.top = left, top
        self.parts: list[str] = []

    def x(self, sent: float) -> float:
        share = math.log(max(sent / 1e6, LEAST_MB) / LEAST_MB) / math.log(MOST_MB / LEAST_MB)
        return self.left + PANEL * min(share, 1.0)

    def y(self, loss: float) -> float:
        share = (MOST_LOSS - min(max(loss, LEAST_LOSS), MOST_LOSS)) / (MOST_LOSS - LEAST_LOSS)
        return self.top + HEIGHT * share

    def text(self, x: float, y: float, words: str, colour: str = INK, size: int = 10) -> None:
        self.parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{colour}">{escape(words)}</text>'
        )

    def path(self, points: list[tuple[float, float]], colour: str, width: float) -> None:
        moves = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.parts.append(
            f'<polyline points="{moves}" fill="none" stroke="{colour}" stroke-width="{width}" '
            'stroke-linejoin="round"/>'
        )

    def axes(self, title: str) -> None:
        self.text(self.left, self.top - 12, title, size=13)
        for sent in (1, 10, 100, 1000):
            x = self.x(sent * 1e6)
            self.path([(x, self.top), (x, self.top + HEIGHT)], FAINT, 1)
            self.text(x - 6, self.top + HEIGHT + 12, f"{sent} MB" if sent == 1 else str(sent))
        for loss in (1.75, 2.0, 2.25, 2.5, 2.75):
            self.path([(self.left, self.y(loss)), (self.left + PANEL, self.y(loss))], FAINT, 1)
            self.text(self.left - 26, self.y(loss) + 4, f"{loss:g}")

    def curve(self, row: dict[str, Any], colour: str, width: float) -> tuple[float, float]:
        points = [
            (self.x(sent), self.y(loss)) for sent, loss in row["curve"] if sent > 0 and loss < 9
        ]
        self.path(points, colour, width)
        x, y = points[-1]
        self.parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>')
        return points[-1]


def drawn(panel: Panel, rows: dict[str, dict[str, Any]]) -> None:
    """The curves, and names beside them that do not cover each other."""
    ends = [
        (panel.curve(row, colour, 1.6), f"{name}  {row['loss']:.2f}", colour)
        for (name, row), colour in zip(rows.items(), itertools.cycle(COLOURS), strict=False)
    ]
    at = panel.top - 4
    for (x, y), words, colour in sorted(ends, key=lambda end: end[0][1]):
        at = max(at + 12, min(y + 4, panel.top + HEIGHT - 12 * len(ends)))
        column = panel.left + PANEL + 8
        panel.path([(x, y), (column - 2, at - 4)], colour, 0.4)
        panel.text(column, at, words, colour)


def picture(found: dict[str, Any]) -> str:
    rows, parts = found["rows"], []
    for number, (title, methods) in enumerate(FAMILIES.items()):
        column, line = number % COLUMNS, number // COLUMNS
        left = 42 + column * (PANEL + LABELS + GAP)
        panel = Panel(left, 78 + line * (HEIGHT + TOP + 30))
        panel.axes(title)
        panel.curve(rows["mean"], PLAIN, 3)
        of_family = {
            name: row
            for name, row in rows.items()
            if row["text"].partition(":")[0] in methods and name != "mean" and row["loss"] < 9
        }
        drawn(panel, of_family)
        parts += panel.parts
    width = 42 + COLUMNS * (PANEL + LABELS + GAP)
    height = 78 + 2 * (HEIGHT + TOP + 30)
    head = (
        f"A transformer of 1.3 million parameters guesses letters, 4 ranks, {found['steps']} steps: loss "
        "(nats a letter) on unseen text against megabytes that a rank has sent"
    )
    note = f"Grey: the plain mean.  The text's own entropy is {found['entropy']:.2f}."
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif">\n<rect width="100%" height="100%" fill="white"/>\n'
        f'<text x="16" y="22" font-size="14" fill="{INK}">{escape(head)}</text>\n'
        f'<text x="16" y="40" font-size="11" fill="{INK}">{escape(note)}</text>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("measured", type=Path)
    parser.add_argument("picture", type=Path)
    options = parser.parse_args()
    options.picture.write_text(picture(json.loads(options.measured.read_text())))


if __name__ == "__main__":
    main()
