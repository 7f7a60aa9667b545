"""`python -m rabit.bench.tune`: what every rank of a tuning job runs."""

from __future__ import annotations

import argparse
import datetime
import math
import sys
import time
from collections.abc import Mapping, Sequence

import numpy as np

from rabit import session
from rabit.bench import table
from rabit.bench.contestants import Contestants
from rabit.bench.mixture import alternatives, play, specs_of
from rabit.bench.plot import draw
from rabit.bench.point import Point
from rabit.bench.progress import Progress
from rabit.bench.sizes import Tunables, find_tunables
from rabit.bench.tune_options import parse_tune
from rabit.bench.winners import Candidate, rules_of
from rabit.engine.current import current_engine
from rabit.engine.engine import Engine
from rabit.errors import InvalidArgument, RabitError
from rabit.ops.allreduces import allreduce
from rabit.tuning.route_table import seal, table_path, topology_of
from rabit.types import Max
from rabit.version import __version__

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
    try:
        parsed = parse_tune(sys.argv[1:] if words is None else words)
        session.init()
        _run(parsed, current_engine())
        session.shutdown()
    except RabitError as error:
        print(f"rabitrun tune: {error}", file=sys.stderr)
        return 2 if isinstance(error, InvalidArgument) else 1
    return 0


def _run(parsed: argparse.Namespace, engine: Engine) -> None:
    config = engine.config
    for name in ("route", "route_table", "allreduce_algorithm"):
        if getattr(config, name):
            raise InvalidArgument(
                f"{name} is {getattr(config, name)!r}, from {config.origin(name)}, and would be all "
                "that is measured. Unset it."
            )
    backends = [each for each in (parsed.backend or config.backend).split(",") if each]
    for each in backends:
        engine.backend(each)
    points = [
        Point(kind, dtype, size)
        for kind in parsed.kinds
        for dtype in parsed.dtypes
        for size in parsed.sizes
    ]
    began = time.monotonic()
    progress = Progress(len(points), sys.stderr if engine.rank == 0 else None)
    tunables: Tunables = ()
    largest = max(parsed.sizes)
    if "allreduce" in parsed.kinds and largest > _UNCUT_BYTES:
        progress.show(0, "sizes of parts, lanes", parsed.budget)
        tunables, gain = find_tunables(engine, largest, parsed.budget * _SIZES_SHARE)
        said = ", ".join(f"{name} {value}" for name, value in tunables)
        if engine.rank == 0 and tunables:
            print(f"# an allreduce of {largest} B is {gain:.2f} x as fast with {said}")
    played_s = parsed.budget * _PLAYED_SHARE if len(backends) > 1 else 0.0
    with Contestants(engine, backends, parsed.kinds).started() as contestants:
        contestants.propose(tunables)
        # The small ones first: of a budget that is too short, each of them still has its share.
        ordered = sorted(points, key=lambda each: each.size)
        weights = [max(1.0, math.sqrt(each.size / _WEIGHTED_BYTES)) for each in ordered]
        for index, point in enumerate(ordered):
            took_s = time.monotonic() - began
            left_s = max(0.0, parsed.budget - played_s - took_s)
            share_s = _of_rank_0(engine, left_s) * weights[index] / sum(weights[index:])
            # Slow links may need more than the budget: every candidate is called a few times.
            most_s = left_s or took_s * sum(weights[index:]) / sum(weights[:index] or [1.0])
            progress.show(index, f"{point.kind} {point.dtype} {point.size} B", most_s)
            point.compete(contestants, share_s)
    progress.show(len(points), "steps of all kinds", played_s)
    tables = alternatives([each.win(parsed.dtypes[0]) for each in points], backends)
    steps: dict[str, float] = {}
    if tables:
        specs = specs_of([each.spec() for each in points if each.dtype is parsed.dtypes[0]])
        kept, steps = play(engine, tables, specs, played_s, tunables)
        for point, winner in zip(points, tables[kept], strict=True):
            point.winner = winner.candidate
        if engine.rank == 0:
            said = ", ".join(f"{name} {seconds * 1e3:.2f} ms" for name, seconds in steps.items())
            print(f"# a step with all kinds: {said}; the table is that of {kept}")
    progress.end(time.monotonic() - began)
    if engine.rank == 0:
        _write(parsed, engine, points, tunables, steps)


def _of_rank_0(engine: Engine, value: float) -> float:
    """Rank 0's figure, so that all ranks measure alike."""
    mine = np.array([value if engine.rank == 0 else -np.inf])
    return float(allreduce(mine, op=Max, engine=engine)[0])


def _write(
    parsed: argparse.Namespace,
    engine: Engine,
    points: Sequence[Point],
    tunables: Tunables,
    steps: Mapping[str, float],
) -> None:
    several = len(set(engine.config.backend.split(","))) > 1
    winners = [each.win(parsed.dtypes[0]) for each in points]
    by_itself = {Candidate("builtin")} if not several else set()
    rules = rules_of(winners, by_itself)
    rows = [row for each in points for row in each.rows()]
    print(
        "kind          type            bytes         p50          busbw  route                        gain"
    )
    for each in points:
        print(each.summary())
    print(f"rules: {rules or '(what the job chooses by itself is fastest everywhere)'}")
    topology = topology_of(engine.config)
    document = seal(
        topology,
        {
            "rabit": __version__,
            "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "rules": rules,
            "tunables": dict(tunables),
            "steps": {name: round(seconds, 9) for name, seconds in steps.items()},
            "rows": rows,
        },
    )
    if parsed.output:
        table.write_document(table_path(parsed.output, topology), document)
        print(f"wrote {parsed.output}; use it with RABIT_ROUTE_TABLE={parsed.output}")
    if parsed.csv:
        table.write_csv(parsed.csv, rows)
    if parsed.plot:
        table.write_text(parsed.plot, draw(rows, f"{engine.size} ranks, rabit {__version__}"))


if __name__ == "__main__":
    sys.exit(main())
