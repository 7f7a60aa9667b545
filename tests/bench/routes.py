"""A route table against every fixed choice, in turns in the same processes.

    rabitrun -np 4 tune -o table.json
    rabitrun -np 4 python tests/bench/routes.py table.json [--bytes 1K:64M] [--rounds 25]

Every kind and size; tuned.py makes the table as well, and judges.  A turn is some calls of each candidate,
next to each other in time; the figure of a turn is the median of its calls, and the ratio of a point the median
over the turns of the best single candidate's time divided by that of the table.  The best is looked for in turns
of their own, because the fastest of several noisy medians looks faster than it is.  Where both take the same
route, the ratio is noise.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from pathlib import Path
from typing import Any

import rabit
from rabit.bench.cases import Spec
from rabit.bench.contestants import Contestants
from rabit.bench.options import parse_sizes
from rabit.bench.timing import Figures, measure
from rabit.bench.tune_options import TUNED_KINDS
from rabit.bench.winners import Candidate
from rabit.engine.engine import Engine

TABLE_EPOCH = 1 << 21
TURN_S, SEARCH_TURNS = 0.03, 3


def compare_point(
    kind: str, size: int, table: Engine, contestants: Contestants, rounds: int
) -> dict[str, Any]:
    """ratio: of the best single candidate's time to the table's."""
    spec = Spec(Spec.kind_of(kind), size, rabit.DType.FLOAT32)
    candidates = contestants.of(kind, spec.dtype)

    def turn(engine: Engine, backend: str = "", checks: bool = False) -> Figures:
        one = Spec(spec.kind, size, spec.dtype, spec.op, 0, backend)
        return measure(engine, one, longest_s=TURN_S, checks=checks, is_brief=True)

    found: dict[Candidate, list[float]] = {each: [] for each in candidates}
    for _ in range(SEARCH_TURNS):
        for each in candidates:
            engine = contestants.engine_of(kind, each)
            found[each].append(turn(engine, each.backend).p50_us)
    best = min(candidates, key=lambda each: statistics.median(found[each]))
    engine = contestants.engine_of(kind, best)
    routes = [turn(table, "", True).route, turn(engine, best.backend, True).route]
    ratios, ours = [], []
    for number in range(rounds):
        if number % 2:
            mine, theirs = turn(table).p50_us, turn(engine, best.backend).p50_us
        else:
            theirs, mine = turn(engine, best.backend).p50_us, turn(table).p50_us
        ratios.append(theirs / mine)
        ours.append(mine)
    return {
        "kind": kind,
        "bytes": size,
        "p50_us": statistics.median(ours),
        "ratio": statistics.median(ratios),
        "route": routes[0],
        "best": str(best),
        "best_route": routes[1],
        "is_same": routes[0] == routes[1],
    }


def run_points(args: argparse.Namespace, table: Engine) -> list[dict[str, Any]]:
    engine = rabit.default_engine()
    backends = [each for each in engine.config.backend.split(",") if each]
    points = []
    with Contestants(engine, backends, TUNED_KINDS).started() as contestants:
        for kind in TUNED_KINDS:
            for size in parse_sizes(args.bytes, 4):
                point = compare_point(kind, size, table, contestants, args.rounds)
                points.append(point)
                if rabit.rank() == 0:
                    print(
                        f"{kind:<13} {size:>10} {point['p50_us']:>11.1f} us  {point['ratio']:.3f} "
                        f"of {point['best']}{' (the same)' if point['is_same'] else ''}",
                        flush=True,
                    )
    return points


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("table", help="of rabitrun tune, on these hosts")
    parser.add_argument("--bytes", default="1K:64M")
    parser.add_argument("--rounds", type=int, default=25, help="turns of a point (default 25)")
    parser.add_argument("--json", type=Path, help="also write the points to this file")
    args = parser.parse_args()
    rabit.init()
    config = rabit.default_engine().config.replace(route_table=args.table)
    with Engine(config, epoch=TABLE_EPOCH) as table:
        points = run_points(args, table)
    if rabit.rank() == 0:
        ratios = [each["ratio"] for each in points]
        mean = math.exp(statistics.fmean(math.log(each) for each in ratios))
        print(f"geometric mean {mean:.3f}, least {min(ratios):.3f}, {len(ratios)} points")
        if args.json:
            args.json.write_text(json.dumps(points, indent=1))
    rabit.shutdown()


if __name__ == "__main__":
    main()
