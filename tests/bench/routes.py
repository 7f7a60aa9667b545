"""A route table against every fixed choice, in turns in the same processes.

    rabitrun -np 4 tune -o table.json
    rabitrun -np 4 python tests/bench/routes.py table.json [--bytes 1K:64M] [--rounds 9]
    rabitrun -np 4 python tests/bench/routes.py table.json --trace moe
    rabitrun --launcher mpi -np 4 --backend builtin,mpi python tests/bench/routes.py table.json --trace dlrm

Without --trace: every kind and size.  A turn is some calls of each candidate, next to each other in
time; the figure of a turn is the median of its calls, and the ratio of a point the median over the
turns of the best single candidate's time divided by that of the table.  The best is looked for in
turns of their own, because the fastest of several noisy medians looks faster than it is.

With --trace: the operations of a training step of that shape, against one backend for all of them.
moe: per layer two alltoalls of tokens, a small allgather of counts and the gradients of the dense part;
dlrm: alltoalls of embeddings forward and backward, allreduces of two multi-layer perceptrons.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import time

import numpy as np

import rabit
from rabit.bench.cases import Case, Spec
from rabit.bench.contestants import Contestants
from rabit.bench.options import parse_sizes
from rabit.bench.timing import measure
from rabit.bench.tune_options import TUNED_KINDS
from rabit.bench.winners import Candidate

SEED = 7
TABLE_EPOCH = 1 << 21


def moe(chance: random.Random) -> list[tuple[str, int]]:
    """(kind, bytes) of a step: 4 layers, tokens unevenly spread over the experts."""
    step = []
    for _ in range(4):
        tokens = chance.choice((16, 64, 256, 1024)) << 10
        step += [("allgather", 1 << 10), ("alltoall", tokens), ("alltoall", tokens)]
        step += [("allreduce", chance.choice((8, 64, 512)) << 10), ("allreduce", 2 << 20)]
    return step


def dlrm(chance: random.Random) -> list[tuple[str, int]]:
    """Embeddings of 26 tables there and back, and the gradients of two perceptrons."""
    rows = chance.choice((128, 256, 512)) << 10
    mlp = [4 << 10, 64 << 10, 256 << 10, 1 << 20, 2 << 10, 512 << 10]
    return [("alltoall", rows), ("alltoall", rows), *(("allreduce", each) for each in mlp)]


TRACES = {"moe": moe, "dlrm": dlrm}


def equal_on_all(values: list[float]) -> list[float]:
    """The slowest rank's figures."""
    return rabit.allreduce(np.array(values), op=rabit.Max).tolist()


# --- points ---------------------------------------------------------------------------------------


def compare_point(
    kind: str, size: int, table, contestants, rounds: int
) -> tuple[float, str, float]:
    """(ratio of the best single candidate's time to the table's, its name, the table's p50 in us)."""
    spec = Spec(Spec.kind_of(kind), size, rabit.DType.FLOAT32)
    candidates = contestants.of(kind, spec.dtype)

    def turn(engine, backend: str = "") -> float:
        one = Spec(spec.kind, size, spec.dtype, spec.op, 0, backend)
        return measure(engine, one, longest_s=0.03, checks=False, fewest=3).p50_us

    found: dict[Candidate, list[float]] = {each: [] for each in candidates}
    for _ in range(3):
        for each in candidates:
            found[each].append(turn(contestants.engine_of(kind, each), each.backend))
    best = min(candidates, key=lambda each: statistics.median(found[each]))
    engine = contestants.engine_of(kind, best)
    ratios, ours = [], []
    for number in range(rounds):
        if number % 2:
            mine, theirs = turn(table), turn(engine, best.backend)
        else:
            theirs, mine = turn(engine, best.backend), turn(table)
        ratios.append(theirs / mine)
        ours.append(mine)
    return statistics.median(ratios), str(best), statistics.median(ours)


def run_points(args: argparse.Namespace, table) -> None:
    engine = rabit.default_engine()
    backends = [each for each in engine.config.backend.split(",") if each]
    ratios = []
    with Contestants(engine, backends, TUNED_KINDS).started() as contestants:
        for kind in TUNED_KINDS:
            for size in parse_sizes(args.bytes, 4):
                ratio, best, p50 = compare_point(kind, size, table, contestants, args.rounds)
                ratios.append(ratio)
                if rabit.rank() == 0:
                    print(
                        f"{kind:<13} {size:>10} {p50:>11.1f} us  {ratio:.3f} of {best}", flush=True
                    )
    if rabit.rank() == 0:
        mean = math.exp(statistics.fmean(math.log(each) for each in ratios))
        print(f"geometric mean {mean:.3f}, least {min(ratios):.3f}, {len(ratios)} points")


# --- traces ---------------------------------------------------------------------------------------


class Step:
    """The operations of a step on one engine, started together and waited for in order."""

    def __init__(self, engine, operations: list[tuple[str, int]]) -> None:
        requests = []
        for number, (kind, size) in enumerate(operations):
            case = Case(Spec(Spec.kind_of(kind), size, rabit.DType.FLOAT32), engine)
            requests.append(case.request(f"{number}.{kind}.{size}", engine))
        self._engine = engine
        self._batch = engine.prepare(requests)

    def seconds(self) -> float:
        rabit.ordered_barrier(engine=self._engine)
        start = time.perf_counter()
        for handle in self._batch.submit():
            handle.wait()
        return time.perf_counter() - start


def run_trace(args: argparse.Namespace, table) -> None:
    base = rabit.default_engine()
    engines = {"table": table}
    for number, backend in enumerate(base.config.backend.split(",")):
        route = f"*:{backend}" if backend == "builtin" else f"*:{backend}/library"
        config = base.config.replace(route=route, route_table="")
        engines[f"{backend} alone"] = rabit.Engine(config, epoch=TABLE_EPOCH + 1 + number)
    chance = random.Random(SEED)
    times: dict[str, list[float]] = {name: [] for name in engines}
    for _ in range(args.rounds):
        operations = TRACES[args.trace](chance)
        steps = {name: Step(engine, operations) for name, engine in engines.items()}
        for name in list(steps) + list(steps)[::-1]:
            steps[name].seconds()
            mine = [steps[name].seconds() for _ in range(5)]
            times[name].append(statistics.median(equal_on_all(mine)))
    if rabit.rank() == 0:
        for name, found in times.items():
            ratios = [theirs / ours for theirs, ours in zip(found, times["table"], strict=True)]
            print(
                f"{args.trace:<5} {name:<16} {statistics.median(found) * 1e3:8.3f} ms a step, "
                f"{statistics.median(ratios):.3f} x the table's"
            )
    for name, engine in engines.items():
        if name != "table":
            engine.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("table", help="of rabitrun tune, on these hosts")
    parser.add_argument("--bytes", default="1K:64M")
    parser.add_argument(
        "--rounds", type=int, default=9, help="turns of a point, or steps (default 9)"
    )
    parser.add_argument("--trace", choices=tuple(TRACES))
    args = parser.parse_args()
    rabit.init()
    config = rabit.default_engine().config.replace(route_table=args.table)
    with rabit.Engine(config, epoch=TABLE_EPOCH) as table:
        (run_trace if args.trace else run_points)(args, table)
    rabit.shutdown()


if __name__ == "__main__":
    main()
