"""Results: what a tuning run has measured, as text and files, also of one that did not come to its end."""

from __future__ import annotations

import argparse
import datetime
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from rabit.bench import table
from rabit.bench.interruption import Interrupted
from rabit.bench.mixture import alternatives
from rabit.bench.plot import draw
from rabit.bench.point import Point
from rabit.bench.sizes import Tunables
from rabit.bench.winners import Candidate, Winner, rules_of
from rabit.engine.engine import Engine
from rabit.errors import RabitError
from rabit.tuning.route_table import seal, table_path, topology_of
from rabit.types import DType
from rabit.version import __version__

__all__ = ["Results", "winners_so_far"]


class Results:
    """Of one run over `points`, in a job with `backends`, its own first."""

    def __init__(
        self,
        parsed: argparse.Namespace,
        engine: Engine,
        backends: Sequence[str],
        points: Sequence[Point],
    ) -> None:
        self._parsed, self._engine = parsed, engine
        self._backends, self._points = backends, points
        self._is_kept = False
        self.tunables: Tunables = ()
        self.steps: Mapping[str, float] = {}  # seconds of a step by the table that was played

    def check_files(self) -> None:
        """Raises InvalidArgument if a file that the command line names cannot be written."""
        given = self._parsed
        for path in (given.output and self._path(given.output), given.csv, given.plot):
            if path:
                table.check_writable(path)

    def write(self) -> None:
        """Everything, where the command line says."""
        first = self._parsed.dtypes[0]
        self._write([point.win(first) for point in self._points], self._parsed.output)

    @contextmanager
    def kept_on_errors(self) -> Iterator[None]:
        """Rank 0 writes the results so far when the block does not come to its end."""
        try:
            yield
        except (Interrupted, RabitError) as error:
            if self._engine.rank == 0 and not self._is_kept:
                self._is_kept = True
                self._write_finished(error)
            raise

    def _write_finished(self, error: BaseException) -> None:
        finished = sum(point.is_finished for point in self._points)
        by = str(error) if isinstance(error, Interrupted) else type(error).__name__
        print(
            f"\nrabitrun tune: ended by {by} with {finished} of {len(self._points)} points measured.",
            file=sys.stderr,
        )
        if not finished:
            print("rabitrun tune: no table is written.", file=sys.stderr)
            return
        output = self._parsed.output and _beside(self._path(self._parsed.output))
        self._write(winners_so_far(self._points, self._parsed.dtypes[0], self._backends), output)
        print("The job chooses by itself where nothing was measured.")

    def _path(self, output: Path) -> Path:
        return table_path(output, topology_of(self._engine.config))

    def _write(self, winners: Sequence[Winner], output: Path | None) -> None:
        several = len(set(self._engine.config.backend.split(","))) > 1
        rules = rules_of(winners, set() if several else {Candidate("builtin")})
        finished = [point for point in self._points if point.is_finished]
        rows = [row for each in finished for row in each.rows()]
        print(
            "kind          type            bytes         p50          busbw  route                        gain"
        )
        for each in finished:
            print(each.summary())
        print(f"rules: {rules or '(what the job chooses by itself is fastest everywhere)'}")
        if output:
            table.write_document(self._path(output), self._document(rules, rows))
            print(f"wrote {output}; use it with RABIT_ROUTE_TABLE={output}")
        if self._parsed.csv:
            table.write_csv(self._parsed.csv, rows)
        if self._parsed.plot:
            text = draw(rows, f"{self._engine.size} ranks, rabit {__version__}")
            table.write_text(self._parsed.plot, text)

    def _document(self, rules: str, rows: Sequence[Mapping[str, object]]) -> dict[str, object]:
        missing = [
            {"kind": point.kind, "type": str(point.dtype), "bytes": point.size}
            for point in self._points
            if not point.is_finished
        ]
        return seal(
            topology_of(self._engine.config),
            {
                "rabit": __version__,
                "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
                "rules": rules,
                "tunables": dict(self.tunables),
                "steps": {name: round(seconds, 9) for name, seconds in self.steps.items()},
                "rows": rows,
                **({"not_measured": missing} if missing else {}),
            },
        )


def winners_so_far(points: Sequence[Point], first: DType, backends: Sequence[str]) -> list[Winner]:
    """Those of finished points; for the others the job's own choice, which ends the rules for their neighbours.

    A mix of backends that no step was played with may be slower than one alone: only winners of the
    job's own backend stay then.
    """
    own = Candidate(backends[0])
    found = []
    for point in points:
        if not point.is_finished:
            point.winner = own
        found.append(point.win(first))
    tables = alternatives(found, backends)
    return tables[backends[0]] if tables else found


def _beside(path: Path) -> Path:
    """`path`, or where a table is already, which may be a whole one, a name beside it."""
    return path.with_name(f"{path.stem}.partial{path.suffix}") if path.is_file() else path
