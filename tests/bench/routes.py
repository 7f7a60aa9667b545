"""A route table against every fixed choice, in turns in the same processes; tuned.py makes the table, and judges.

A turn is some calls of each candidate, next to each other in time; the figure of a turn is the median of its calls,
and the ratio of a point the median over the turns of the best single candidate's time divided by that of the table.
The best is looked for in turns of their own, because the fastest of several noisy medians looks faster than it is; who
takes 1.5 times as long as the best has one, and none if the table says twice as long.  Where both take the same route
and the table cuts nothing in another way, the ratio is noise and has the fewest turns.  All of it takes about
`o.limit` seconds; what is left in the end goes to the points that fall short, whose turns all count.
"""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import rabit
from rabit.bench.cases import Spec
from rabit.bench.contestants import Contestants
from rabit.bench.options import parse_sizes
from rabit.bench.progress import Progress
from rabit.bench.timing import Figures, measure
from rabit.bench.tune_options import TUNED_KINDS
from rabit.bench.winners import Candidate
from rabit.engine.engine import Engine

TABLE_EPOCH = 1 << 21
TURN_S, FEWEST_TURNS, SEARCH_TURNS = 0.03, 5, 3
NEAR, HOPELESS = 1.5, 2.0
# Longer calls differ by less: they have one turn in the search, and fewer to compare.
LONG_S, FEWEST_LONG_TURNS = 0.2, 3
SHORT = 0.95
# From here on, four times the size has twice the share of the time, as in tune.
WEIGHTED_BYTES = 1 << 20
# Of the time, for points that fall short.
AGAIN_SHARE = 0.15


@dataclasses.dataclass
class Point:
    """One kind and size.  ratios: by turn, of the best single candidate's time to the table's."""

    kind: str
    bytes: int
    best: str = ""
    route: str = ""
    best_route: str = ""
    is_same: bool = False
    ours_s: list[float] = dataclasses.field(default_factory=list)
    ratios: list[float] = dataclasses.field(default_factory=list)

    @property
    def ratio(self) -> float:
        return statistics.median(self.ratios)

    @property
    def is_short(self) -> bool:
        return self.ratio < SHORT and not self.is_same

    def document(self) -> dict[str, Any]:
        low, _, high = statistics.quantiles(self.ratios, n=4)
        return {
            "kind": self.kind,
            "bytes": self.bytes,
            "p50_us": statistics.median(self.ours_s) * 1e6,
            "ratio": self.ratio,
            "middle_half": [low, high],
            "turns": len(self.ratios),
            "route": self.route,
            "best": self.best,
            "best_route": self.best_route,
            "is_same": self.is_same,
        }


class Comparison:
    """The points, one after the other, in about `limit_s` seconds.  All ranks make the same calls."""

    def __init__(self, table: Engine, contestants: Contestants, document: Any, o: Any) -> None:
        """document: the table."""
        self._table = table
        self._contestants = contestants
        self._has_tunables = bool(document.get("tunables"))
        self._measured_us = {(row["kind"], row["bytes"], row["candidate"]): row["p50_us"] for row in document["rows"]}
        self._rounds: int = o.rounds
        self._ends = time.monotonic() + o.limit
        sizes = parse_sizes(o.bytes, 4)
        self.points = [Point(kind, size) for size in sizes for kind in TUNED_KINDS]
        self._progress = Progress(len(self.points), sys.stderr if table.rank == 0 else None)
        self._best: dict[int, Candidate] = {}

    def run(self) -> None:
        began = time.monotonic()
        weights = [max(1.0, math.sqrt(each.bytes / WEIGHTED_BYTES)) for each in self.points]
        kept_s = AGAIN_SHARE * (self._ends - began)
        for index, point in enumerate(self.points):
            left_s = self._left()
            self._progress.show(index, f"{point.kind} {point.bytes} B", max(0.0, left_s))
            share_s = max(0.0, left_s - kept_s) * weights[index] / sum(weights[index:])
            self._meet(index, time.monotonic() + share_s)
        self._repeat_short()
        self._progress.end(len(self.points), time.monotonic() - began)

    def _left(self) -> float:
        """Seconds, of rank 0, so that all ranks measure alike."""
        return self._of_rank_0(self._ends - time.monotonic())

    def _of_rank_0(self, value: float) -> float:
        mine = np.array([value if self._table.rank == 0 else -np.inf])
        return float(rabit.allreduce(mine, op=rabit.Max, engine=self._table)[0])

    def _turn(self, point: Point, who: Candidate | None, checks: bool = False) -> Figures:
        """Of a candidate, or of the table."""
        engine = self._contestants.engine_of(point.kind, who) if who else self._table
        backend = who.backend if who else ""
        spec = Spec(Spec.kind_of(point.kind), point.bytes, rabit.DType.FLOAT32, backend=backend)
        return measure(engine, spec, longest_s=TURN_S, checks=checks, is_brief=True)

    def _meet(self, index: int, until: float) -> None:
        point = self.points[index]
        best, figures = self._find_best(point)
        self._best[index] = best
        point.best, point.best_route = str(best), figures.route
        point.route = self._turn(point, None, True).route
        point.is_same = point.route == point.best_route and not self._has_tunables
        # A turn of each is some calls, and what comes before them takes as long.
        pair_s = 2 * max(2 * TURN_S, figures.p50_us / 1e6)
        fitting = int(self._of_rank_0((until - time.monotonic()) / pair_s))
        fewest = FEWEST_LONG_TURNS if figures.p50_us > LONG_S * 1e6 else FEWEST_TURNS
        most = fewest if point.is_same else self._rounds
        self._compare(index, max(fewest, min(most, fitting)))

    def _find_best(self, point: Point) -> tuple[Candidate, Figures]:
        """The fastest single candidate, and the figures of its first turn."""
        candidates = self._hopeful(point)
        # The check is a first call, which opens connections and memory.
        first = {each: self._turn(point, each, True) for each in candidates}
        least = min(each.p50_us for each in first.values())
        near = [each for each in candidates if first[each].p50_us <= NEAR * least]
        found = {each: [first[each].p50_us] for each in near}
        is_long = least > LONG_S * 1e6
        for _ in range(SEARCH_TURNS - 1 if len(near) > 1 and not is_long else 0):
            for each in near:
                found[each].append(self._turn(point, each).p50_us)
        best = min(near, key=lambda each: statistics.median(found[each]))
        return best, first[best]

    def _hopeful(self, point: Point) -> list[Candidate]:
        candidates = self._contestants.of(point.kind, rabit.DType.FLOAT32)
        measured = [self._measured_us.get((point.kind, point.bytes, str(each)), 0.0) for each in candidates]
        limit = HOPELESS * min(measured)
        if limit == 0.0:  # The table has not all of them.
            return candidates
        return [each for each, us in zip(candidates, measured, strict=True) if us <= limit]

    def _compare(self, index: int, turns: int) -> None:
        point, best = self.points[index], self._best[index]
        for number in range(turns):
            pair = (None, best) if number % 2 else (best, None)
            times = {who: self._turn(point, who).p50_us for who in pair}
            point.ratios.append(times[best] / times[None])
            point.ours_s.append(times[None] / 1e6)

    def _repeat_short(self) -> None:
        while self._left() > 0:
            short = [index for index, each in enumerate(self.points) if each.is_short]
            for index in short:
                point = self.points[index]
                self._progress.show(len(self.points) - 1, f"again {point.kind}", self._left())
                self._compare(index, FEWEST_TURNS)
            if not short or max(len(self.points[each].ratios) for each in short) > 4 * self._rounds:
                return


def routes_rank(o: Any) -> list[dict[str, Any]]:
    """The points of the table `o.table`, on one rank."""
    rabit.init()
    engine = rabit.default_engine()
    backends = [name for name in engine.config.backend.split(",") if name]
    document = json.loads(Path(o.table).read_text())
    with (
        Engine(engine.config.replace(route_table=o.table), epoch=TABLE_EPOCH) as table,
        Contestants(engine, backends, TUNED_KINDS).started() as contestants,
    ):
        comparison = Comparison(table, contestants, document, o)
        comparison.run()
    rabit.shutdown()
    return [point.document() for point in comparison.points]
