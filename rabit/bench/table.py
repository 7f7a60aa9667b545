"""The table of a benchmark: text for people, CSV and JSON for programs."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rabit.bench.timing import Figures
from rabit.errors import InvalidArgument

__all__ = [
    "check_writable",
    "heading",
    "line",
    "row",
    "write_csv",
    "write_document",
    "write_json",
    "write_text",
]

_WIDTHS = {
    "kind": -13, "bytes": 11, "count": 11, "type": 9, "op": 5, "root": 5, "p50_us": 11,
    "p95_us": 11, "algbw": 8, "busbw": 8, "wrong": 6, "route": 0,
}  # fmt: skip


def row(figures: Figures) -> dict[str, Any]:
    """The figures by column."""
    spec = figures.spec
    return {
        "kind": str(spec.kind),
        "bytes": figures.bytes,
        "count": figures.count,
        "type": str(spec.dtype),
        "op": str(spec.op) if spec.has_op else "-",
        "root": spec.root if spec.is_rooted else "-",
        "p50_us": figures.p50_us,
        "p95_us": figures.p95_us,
        "algbw": figures.algbw,
        "busbw": figures.busbw,
        "wrong": "-" if figures.wrong is None else figures.wrong,
        "backend": spec.backend or "default",
        "route": figures.route,
        "calls": len(figures.seconds),
    }


def heading() -> str:
    """Two lines: names and units."""
    units = {"bytes": "B", "count": "elements", "p50_us": "us", "p95_us": "us", "algbw": "GB/s",
             "busbw": "GB/s"}  # fmt: skip
    names = {each: each.removesuffix("_us") for each in _WIDTHS}
    return _line(names) + "\n" + _line({each: units.get(each, "") for each in _WIDTHS})


def line(figures: Figures) -> str:
    """The row as text under `heading`."""
    shown = row(figures)
    for name in ("p50_us", "p95_us"):
        shown[name] = f"{shown[name]:.1f}"
    for name in ("algbw", "busbw"):
        shown[name] = f"{shown[name]:.3f}" if shown[name] < 100 else f"{shown[name]:.1f}"
    return _line(shown)


def _line(values: Mapping[str, Any]) -> str:
    words = [
        f"{values[name]!s:<{-width}}" if width < 0 else f"{values[name]!s:>{width}}"
        for name, width in _WIDTHS.items()
        if width
    ]
    return f"{' '.join(words)}  {values['route']}".rstrip()


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """One line for each row, with a header."""
    with _writing(path) as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def write_json(path: Path, document: Mapping[str, Any], measured: Iterable[Figures]) -> None:
    """`document` with the rows, and every timed call of each."""
    rows = [{**row(each), "seconds": list(each.seconds)} for each in measured]
    write_document(path, {**document, "rows": rows})


def write_document(path: Path, document: Mapping[str, Any]) -> None:
    """A JSON document as a file."""
    write_text(path, json.dumps(document, indent=1))


def write_text(path: Path, text: str) -> None:
    with _writing(path) as file:
        file.write(text)


def check_writable(path: Path) -> None:
    """Raises InvalidArgument if no file can be written at `path`; before it takes minutes to fill it."""
    is_new = not os.access(path, os.F_OK)
    _writing(path, "a").close()
    if is_new:
        path.unlink()


def _writing(path: Path, mode: str = "w") -> Any:
    try:
        return path.open(mode, newline="")
    except OSError as error:
        raise InvalidArgument(
            f"cannot write {path}: {error.strerror}. Name a file in a folder that can be written."
        ) from error
