"""`rabitrun top`: what the ranks of a job do, one row for each, as it continues."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from rabit.command import run_command
from rabit.config.arguments import LineParser
from rabit.diagnostics.doctor.bound import shares_of
from rabit.diagnostics.doctor.diagnosis import diagnose
from rabit.diagnostics.doctor.picture import Picture, RankView
from rabit.diagnostics.look.client import JobLink, find_job
from rabit.errors import TimedOut
from rabit.printable import printable

__all__ = ["main", "rows_of", "table_lines"]

_COLUMNS = (
    "rank",
    "host",
    "state",
    "step",
    "steps/s",
    "late %",
    "bound by",
    "blocked %",
    "cpu",
    "cpu wait %",
    "MB/s",
    "rss MiB",
    "line",
)


def main(words: Sequence[str] | None = None) -> int:
    """Shows the job that the command line names until it ends; the exit status."""
    parser = LineParser(
        prog="rabitrun top",
        description="Shows one row for each rank of a job: its steps, for how much of the time the others wait for it, "
        "how long it is blocked, its processor and memory, and its line when nothing moves.",
        epilog="In a terminal with the package rich the table is live; else each look is printed. Ctrl-C ends it.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "job", nargs="?", default="", help="process of its rabitrun; not needed for the only job"
    )
    parser.add_argument("--once", action="store_true", help="one look")
    parser.add_argument("--json", action="store_true", help="each look as one line of JSON")
    parser.add_argument(
        "--interval", type=float, default=1.0, metavar="SECONDS", help="between looks (1)"
    )
    parsed = parser.parse_args(words)
    with (
        contextlib.closing(JobLink(find_job(parsed.job))) as link,
        _screen(parsed.once or parsed.json) as show,
    ):
        before: Mapping[str, Any] = {}
        while True:
            try:
                look = link.look(
                    stacks=1 if parsed.once else 0, interval_s=max(0.1, min(10.0, parsed.interval))
                )
            except TimedOut:
                if not before:
                    raise
                return 0  # The job has ended.
            if parsed.json:
                print(
                    json.dumps({"summary": diagnose(look).summary, "ranks": rows_of(look, before)}),
                    flush=True,
                )
            else:
                show(diagnose(look).summary, rows_of(look, before))
            if parsed.once:
                return 0
            before = look


def rows_of(look: Mapping[str, Any], before: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row for each rank.  before: the look before this one, from which rates are taken; {}: the rank's own start."""
    picture, earlier = Picture(look), Picture(before) if before else None
    return [
        _row(view, picture, earlier.ranks.get(rank) if earlier else None)
        for rank, view in picture.ranks.items()
    ]


def _row(view: RankView, picture: Picture, before: RankView | None) -> dict[str, Any]:
    span = _span_s(view, before)
    state = view.state or ("ended" if view.end or view.document else "not started")
    waits = [each["name"] for each in view.waits_for[:1]]
    # What a rank of a job that stands waits for is not counted before it comes.
    shares = shares_of(view) if picture.phase == "running" else {}
    return {
        "rank": view.rank,
        "host": view.host,
        "state": f"waits for {waits[0]}" if waits and picture.phase == "hung" else state,
        "step": view.steps,
        "steps/s": _rate(view, before, "steps", span),
        "late %": 100 * picture.late_share.get(view.rank, 0.0),
        "bound by": max(shares, key=lambda part: shares[part]) if shares else "",
        "blocked %": 100 * _rate(view, before, "waiting_ns", span) / 1e9,
        "cpu": view.processor_share,
        "cpu wait %": 100 * view.delay_share,
        "MB/s": _rate(view, before, "bytes", span) / 1e6,
        "rss MiB": int(view.process.get("rss_bytes", 0)) >> 20,
        "line": view.line,
    }


def _span_s(view: RankView, before: RankView | None) -> float:
    now = int(view.process.get("time_ns", 0))
    first = (
        int(before.process.get("time_ns", 0)) if before else int(view.header.get("monotonic_ns", 0))
    )
    return (now - first) / 1e9 if now and first else 0.0


def _rate(view: RankView, before: RankView | None, name: str, span: float) -> float:
    grown = view.counters.get(name, 0) - (before.counters.get(name, 0) if before else 0)
    return float(max(0, grown)) / span if span > 0 else 0.0


def table_lines(summary: str, rows: Sequence[Mapping[str, Any]], width: int = 0) -> list[str]:
    """The table as text; width: of the terminal, 0: any."""
    cells = [[_cell(row[name]) for name in _COLUMNS] for row in rows]
    widths = [
        max([len(name), *(len(row[place]) for row in cells)]) for place, name in enumerate(_COLUMNS)
    ]
    lines = [printable(summary)]
    for row in [list(_COLUMNS), *cells]:
        line = "  ".join(text.ljust(size) for text, size in zip(row, widths, strict=True)).rstrip()
        lines.append(line[:width] if width else line)
    return lines


def _cell(value: Any) -> str:
    return f"{value:.1f}" if isinstance(value, float) else printable(str(value))


@contextlib.contextmanager
def _screen(is_plain: bool) -> Any:
    """A function that shows a summary and rows: in place where that can be, else one after the other."""
    if is_plain or not sys.stdout.isatty():
        yield lambda summary, rows: print(
            "\n".join(table_lines(summary, rows)), time.strftime("(%H:%M:%S)"), flush=True
        )
        return
    try:
        from rich.live import Live
        from rich.table import Table
    except ImportError:
        yield lambda summary, rows: print(
            "\x1b[H\x1b[2J" + "\n".join(table_lines(summary, rows)), flush=True
        )
        return
    with Live(auto_refresh=False) as live:

        def show(summary: str, rows: Sequence[Mapping[str, Any]]) -> None:
            table = Table(*_COLUMNS, title=printable(summary), title_justify="left", box=None)
            for row in rows:
                table.add_row(*(_cell(row[name]) for name in _COLUMNS))
            live.update(table, refresh=True)

        yield show


if __name__ == "__main__":
    sys.exit(run_command("rabitrun top", main))
