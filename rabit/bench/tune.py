"""`python -m rabit.bench.tune`: what every rank of a tuning job runs."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from contextlib import suppress

from rabit import session
from rabit.bench.budget import Budget, Spent
from rabit.bench.contestants import Contestants
from rabit.bench.interruption import Interrupted, Signals, interruptions
from rabit.bench.mixture import alternatives, play, specs_of
from rabit.bench.point import Point
from rabit.bench.progress import Progress
from rabit.bench.sizes import find_tunables
from rabit.bench.tune_options import parse_tune
from rabit.bench.tuning_results import Results
from rabit.bench.winners import Candidate
from rabit.engine.current import current_engine
from rabit.engine.engine import Engine
from rabit.errors import InvalidArgument, RabitError
from rabit.ops.objects import broadcast_object

__all__ = ["main"]

# From here on, four times the size has twice the share of the budget.
_WEIGHTED_BYTES = 1 << 20
# Of the budget, for how large tensors are cut; and from where on that makes a difference.
_SIZES_SHARE = 0.1
_UNCUT_BYTES = 2 << 20
# Of the budget, for playing a mix of backends.
_PLAYED_SHARE = 0.1


def main(words: Sequence[str] | None = None) -> int:
    """Measures and writes what the command line says; the exit status."""
    signals = Signals()
    try:
        parsed = parse_tune(sys.argv[1:] if words is None else words)
        session.init()
        engine = current_engine()
        with interruptions(engine.rank) as signals:
            _Tuning(parsed, engine).run()
        session.shutdown()
    except Interrupted as interrupted:
        _end(engine, f"rabitrun tune was interrupted by {interrupted}")
        return signals.status
    except RabitError as error:
        if signals.signum:  # Rank 0 has ended the run, and tells it.
            _end(engine, str(error))
            return signals.status
        print(f"rabitrun tune: {error}", file=sys.stderr)
        return 2 if isinstance(error, InvalidArgument) else 1
    return 0


def _end(engine: Engine, why: str) -> None:
    with suppress(RabitError):  # It may have ended for the other ranks already.
        engine.abort(why)
        engine.close(0.0)


class _Tuning:
    """One run: what is to be measured, and what has been."""

    def __init__(self, parsed: argparse.Namespace, engine: Engine) -> None:
        config = engine.config
        for name in ("route", "route_table", "allreduce_algorithm"):
            if getattr(config, name):
                raise InvalidArgument(
                    f"{name} is {getattr(config, name)!r}, from {config.origin(name)}, and would be all "
                    "that is measured. Unset it."
                )
        self._parsed, self._engine = parsed, engine
        self._backends = [part for part in (parsed.backend or config.backend).split(",") if part]
        for backend in self._backends:
            engine.backend(backend)
        self._points = [
            Point(kind, dtype, size)
            for kind in parsed.kinds
            for dtype in parsed.dtypes
            for size in parsed.sizes
        ]
        self._budget = Budget(engine, parsed.budget)
        self._progress = Progress(len(self._points), sys.stderr if engine.rank == 0 else None)
        self._results = Results(parsed, engine, self._backends, self._points)
        self._check_files()

    def _check_files(self) -> None:
        """Rank 0 writes at the end, after minutes; all ranks raise what it would find then."""
        problem = ""
        if self._engine.rank == 0:
            try:
                self._results.check_files()
            except InvalidArgument as error:
                problem = str(error)
        if problem := broadcast_object(problem, name="tune.files", engine=self._engine):
            raise InvalidArgument(problem)

    def run(self) -> None:
        """Measures everything and writes it; what has been measured, if it does not come to an end."""
        parsed, results = self._parsed, self._results
        played_s = parsed.budget * _PLAYED_SHARE if len(self._backends) > 1 else 0.0
        with results.kept_on_errors():
            self._find_tunables()
            # Kept before the contestants' engines end, which may wait for the other ranks.
            with (
                Contestants(self._engine, self._backends, parsed.kinds).started() as contestants,
                results.kept_on_errors(),
            ):
                contestants.propose(results.tunables)
                self._compete(contestants, played_s)
            self._progress.show(len(self._points), "steps of all kinds", played_s)
            self._play(played_s)
        self._progress.end(sum(point.is_finished for point in self._points), parsed.budget - self._budget.left_s())
        self._tell_missing()
        if self._engine.rank == 0:
            results.write()

    def _find_tunables(self) -> None:
        parsed, engine = self._parsed, self._engine
        largest = max(parsed.sizes)
        if "allreduce" not in parsed.kinds or largest <= _UNCUT_BYTES:
            return
        self._progress.show(0, "sizes of parts, lanes", parsed.budget)
        seconds = parsed.budget * _SIZES_SHARE
        try:
            tunables, gain = find_tunables(engine, largest, seconds, self._budget.part(seconds))
        except Spent:  # Slow links: what the engine chooses by itself stays.
            return
        self._results.tunables = tunables
        said = ", ".join(f"{name} {value}" for name, value in tunables)
        if engine.rank == 0 and tunables:
            print(f"# an allreduce of {largest} B is {gain:.2f} x as fast with {said}")

    def _compete(self, contestants: Contestants, played_s: float) -> None:
        # The small ones first: of a budget that is too short, each of them still has its share.
        ordered = sorted(self._points, key=lambda each: each.size)
        weights = [max(1.0, math.sqrt(each.size / _WEIGHTED_BYTES)) for each in ordered]
        budget = self._budget.part(self._budget.left_s() - played_s)
        for index, point in enumerate(ordered):
            left_s = max(0.0, budget.left_s())
            self._progress.show(index, f"{point.kind} {point.dtype} {point.size} B", left_s + played_s)
            try:
                point.compete(contestants, left_s * weights[index] / sum(weights[index:]), budget.part(left_s))
            except Spent:
                break
        for point in self._points:
            if not point.is_finished:
                point.winner = Candidate(self._backends[0])

    def _tell_missing(self) -> None:
        missing = [f"{point.kind} {point.dtype} {point.size} B" for point in self._points if not point.is_finished]
        if missing and self._engine.rank == 0:
            more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
            print(
                f"# --budget {self._parsed.budget:g}s was over before {', '.join(missing[:3])}{more}: the job chooses "
                "by itself there. Give more, or fewer sizes and kinds."
            )

    def _play(self, played_s: float) -> None:
        results, first = self._results, self._parsed.dtypes[0]
        tables = alternatives([point.win(first) for point in self._points], self._backends)
        if not tables:
            return
        specs = specs_of([point.spec() for point in self._points if point.dtype is first])
        budget = self._budget.part(max(played_s, self._budget.left_s()))
        try:
            kept, results.steps = play(self._engine, tables, specs, played_s, results.tunables, budget)
        except Spent:  # A mix that no step was played with may be slower than one backend alone.
            kept = self._backends[0]
        for point, winner in zip(self._points, tables[kept], strict=True):
            point.winner = winner.candidate
        if self._engine.rank == 0 and results.steps:
            times = results.steps.items()
            said = ", ".join(f"{name} {seconds * 1e3:.2f} ms" for name, seconds in times)
            print(f"# a step with all kinds: {said}; the table is that of {kept}")


if __name__ == "__main__":
    sys.exit(main())
