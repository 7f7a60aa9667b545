"""Draws what methods_links.py and methods_digits.py have measured: docs/evidence/methods_measured.svg.

    python tests/bench/methods_picture.py build/links_100M.json build/links_1G.json --digits build/digits.json \
        --picture docs/evidence/methods_measured.svg

Above: seconds of a step on each link, beside torch's hooks.  Below: accuracy on digits, with the best and
the worst seed.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from html import escape
from pathlib import Path
from typing import Any

import methods_digits
from harness import case, words

WIDTH, LEFT, RIGHT, ROW, BAR = 860, 300, 90, 19, 12
OURS, THEIRS, PLAIN, INK, FAINT = "#4c78a8", "#b279a2", "#9aa5b1", "#222", "#ddd"


class Drawing:
    """Lines of SVG, from the top."""

    def __init__(self) -> None:
        self.y = 0.0
        self.parts: list[str] = []

    def text(self, x: float, words: str, *, anchor: str = "start", size: int = 12) -> None:
        self.parts.append(
            f'<text x="{x:.1f}" y="{self.y + 10:.1f}" text-anchor="{anchor}" font-size="{size}" '
            f'fill="{INK}">{escape(words)}</text>'
        )

    def title(self, words: str) -> None:
        self.y += 14
        self.text(12, words, size=14)
        self.y += 24

    def bar(self, start: float, end: float, colour: str) -> None:
        self.parts.append(
            f'<rect x="{start:.1f}" y="{self.y:.1f}" width="{max(end - start, 1):.1f}" '
            f'height="{BAR}" rx="2" fill="{colour}"/>'
        )

    def line(self, x: float, height: float, colour: str = FAINT) -> None:
        self.parts.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{self.y - 3:.1f}" y2="{self.y + height:.1f}" stroke="{colour}"/>'
        )

    def svg(self) -> str:
        height = self.y + 12
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" '
            f'font-family="sans-serif">\n<rect width="100%" height="100%" fill="white"/>\n'
            + "\n".join(self.parts)
            + "\n</svg>\n"
        )


def draw_links(drawing: Drawing, found: dict[str, Any]) -> None:
    rows = sorted(found["rows"], key=lambda row: -row["seconds"])
    drawing.title(
        f"Seconds of a step: {found['mebibytes']} MiB of gradients, 4 ranks, "
        f"{found['rate'] / 1e6:g} Mbit/s (logarithmic)"
    )
    least, most = (math.log10(f(row["seconds"] for row in rows)) for f in (min, max))
    least, most = math.floor(least), most + 0.05
    scale = (WIDTH - LEFT - RIGHT) / (most - least)
    for power in range(least, math.ceil(most)):
        drawing.line(LEFT + (power - least) * scale, ROW * len(rows))
    for row in rows:
        name = row["method"]
        colour = PLAIN if name in ("mean", "ddp") else THEIRS if name.startswith("ddp") else OURS
        end = LEFT + (math.log10(row["seconds"]) - least) * scale
        drawing.text(LEFT - 8, name, anchor="end")
        drawing.bar(LEFT, end, colour)
        drawing.text(end + 6, f"{row['seconds']:.3g} s")
        drawing.y += ROW


def digits_of(path: Path) -> list[dict[str, Any]]:
    """The rows that methods_digits.py has saved; of other settings, or of another hand, none is drawn."""
    rows = json.loads(path.read_text())["rows"]
    wrong = [name for name, row in rows.items() if not is_measured(name, row)]
    if wrong or "mean" not in rows:
        raise SystemExit(
            f"{path}: {' and '.join(wrong) or 'mean'} is what methods_digits.py has not measured as the table there "
            f"says. Run it with --save {path}."
        )
    return [{"method": name, **row} for name, row in rows.items()]


def is_measured(name: str, row: dict[str, Any]) -> bool:
    way, seeds = methods_digits.TABLE.get(name), len(row["accuracy"])
    return way is not None and row.get("settings") == {**asdict(way), "seeds": seeds}


def draw_digits(drawing: Drawing, rows: list[dict[str, Any]]) -> None:
    counts = sorted({len(row["accuracy"]) for row in rows})
    drawing.title(
        f"Accuracy on digits in per cent, {' or '.join(map(str, counts))} seeds each; the line is the mean of gradients"
    )
    low, high = 92.0, 99.0
    scale = (WIDTH - LEFT - RIGHT) / (high - low)
    plain = next(row for row in rows if row["method"] == "mean")["accuracy"]
    drawing.line(LEFT + (sum(plain) / len(plain) - low) * scale, ROW * len(rows), PLAIN)
    for row in sorted(rows, key=lambda each: -sum(each["accuracy"]) / len(each["accuracy"])):
        seeds = row["accuracy"]
        mean = sum(seeds) / len(seeds)
        first, last = (LEFT + (max(each, low) - low) * scale for each in (min(seeds), max(seeds)))
        drawing.text(LEFT - 8, row["method"].split(",small")[0].split(",block")[0], anchor="end", size=11)
        drawing.bar(first, last, FAINT if mean < low else "#c6d6e8")
        centre = LEFT + (max(mean, low) - low) * scale
        drawing.parts.append(f'<circle cx="{centre:.1f}" cy="{drawing.y + BAR / 2:.1f}" r="4" fill="{OURS}"/>')
        drawing.text(WIDTH - RIGHT + 12, f"{mean:.1f}")
        drawing.y += ROW


@case(links=words("", "files of methods_links"), digits="", picture="measured.svg")
def methods_picture(o: Any) -> None:
    """Draws what methods_links and methods_digits have measured: docs/evidence/methods_measured.svg."""
    drawing = Drawing()
    for links in o.links:
        draw_links(drawing, json.loads(Path(links).read_text()))
    draw_digits(drawing, digits_of(Path(o.digits)))
    Path(o.picture).write_text(drawing.svg())
