"""Figures: medians, ratios of turns with their intervals, and tables."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

__all__ = ["TABLES", "interval", "median", "parse_rate", "parse_size", "ratio", "show_size", "show_time", "table"]

median = statistics.median


def parse_size(text: str) -> int:
    """Bytes: "64K" is 65536."""
    factor = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:].upper(), 1)
    return int(text[:-1] if factor > 1 else text) * factor


def parse_rate(text: str) -> float:
    """Bits a second: "100M" is 1e8; no text is 0, which is no limit."""
    return float(text[:-1]) * {"M": 1e6, "G": 1e9}[text[-1].upper()] if text else 0.0


def show_size(size: int) -> str:
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= factor:
            return f"{size // factor} {unit}"
    return f"{size} B"


def show_time(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e6:.1f} us" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"


def ratio(base: Sequence[float], ours: Sequence[float]) -> float:
    """The median over the turns of base / ours: above 1, ours is faster."""
    return median(theirs / mine for theirs, mine in zip(base, ours, strict=True))


def interval(statistic: Callable[..., float], *samples: Sequence[float], paired: bool = False) -> tuple[float, float]:
    """The 95 % bootstrap interval of a statistic; paired: of samples whose turns belong together."""
    chooser = random.Random(1)
    found = []
    for _ in range(1000):
        if paired:
            rows = chooser.choices(list(zip(*samples, strict=True)), k=len(samples[0]))
            found.append(statistic(*zip(*rows, strict=True)))
        else:
            found.append(statistic(*(chooser.choices(each, k=len(each)) for each in samples)))
    found.sort()
    return found[25], found[975]


TABLES: list[dict[str, Any]] = []
"""What `table` has printed in this process; `--json FILE` writes it at the end."""


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Prints columns; the first is aligned to the left, numbers have three places."""
    rows = [list(row) for row in rows]
    TABLES.append({"heads": list(heads), "rows": rows})
    texts = [[f"{cell:.3f}" if isinstance(cell, float) else str(cell) for cell in row] for row in (heads, *rows)]
    widths = [max(len(cell) for cell in column) for column in zip(*texts, strict=True)]
    for row in texts:
        first, *others = (
            cell.ljust(width) if place == 0 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        print("  ".join([first, *others]).rstrip(), flush=True)
