"""Step times beside the provable ideal: emulated devices on links shaped by the kernel.

    sudo python tests/bench/schedule.py                          # 4 ranks at 1 Gbit/s, rho = 1
    sudo python tests/bench/schedule.py --rate 100M --ranks 8 --compute 3 --shapes vgg --rho 0.75,2
    sudo python tests/bench/schedule.py --ways sequential,barrier,crossing-fifo,alphabetical,whole,crossing,dear
    sudo python tests/bench/schedule.py --ways barrier,crossing,crossing@512K:1M:2   # p, credit, lanes

backward, next-forward and reduce-scatter are the overlaps of DistributedOptimizer, with its own hooks, SGD
and settings.  rho is communication over computation.  Every rank has a network namespace; all ways to communicate
live in the same processes and take turns.  T* is the shortest step that any order of communication
can reach with the measured link, T_bar the shortest while the update waits for all gradients (see
docs/explain/scheduling.md).  Printed are epsilon = T*/T, the speed-up over rabit's own fused FIFO with
a barrier, and T beside what the model predicts, with 95 % bootstrap intervals.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import secrets
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from harness import links as shaped_links
from schedule_model import simulate
from schedule_rank import neighbours, priorities
from schedule_shapes import SHAPES, scaled

from rabit.rendezvous.discovery import StoreServer
from rabit.tuning.step_time import Layer, barrier, crossing, dear, sequential

HERE = Path(__file__).resolve().parent
BASES = ("barrier", "ddp")  # what speed-ups are over
LINK_SIZES = (
    1 << 16,
    1 << 18,
    1 << 20,
    1 << 22,
    1 << 24,
)  # at 1 Gbit/s, that the link is measured with


def parse_rate(text: str) -> float:
    factor = {"M": 1e6, "G": 1e9}[text[-1].upper()]
    return float(text[:-1]) * factor


def parse_sizes(text: str) -> dict[str, int]:
    """PARTITION:CREDIT:LANES, as in 512K:1M:2."""
    partition, credit, lanes = text.split(":")
    units = {"K": 1 << 10, "M": 1 << 20}
    size = {each: int(float(each[:-1]) * units[each[-1]]) for each in (partition, credit)}
    return {
        "partition_bytes": size[partition],
        "fusion_bytes": size[partition],
        "credit_bytes": size[credit],
        "lanes": int(lanes),
    }


def ways_and_engines(options: argparse.Namespace) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the names on the command line mean."""
    scheduled = {
        key: value
        for key, value in {
            "partition_bytes": options.partition_bytes,
            "fusion_bytes": options.fusion_bytes,
            "credit_bytes": options.credit_bytes,
            "lanes": options.lanes,
        }.items()
        if value is not None
    }
    engines = {
        "scheduled": {"scheduler": "priority", **scheduled},
        "defaults": {},
        "fifo": {"scheduler": "fifo", "fusion_bytes": 64 << 20, "credit_bytes": 0},
        "whole": {
            "scheduler": "priority",
            "partition_bytes": 1 << 40,
            "fusion_bytes": 0,
            "credit_bytes": 1,
        },
    }

    def reduced(engine: str, order: str, has_barrier: bool) -> dict[str, Any]:
        return {"kind": "reduced", "engine": engine, "order": order, "barrier": has_barrier}

    ways = {
        "barrier": reduced("fifo", "fifo", True),
        "crossing": reduced("scheduled", "forward", False),
        "crossing-fifo": reduced("fifo", "fifo", False),
        "priority-barrier": reduced("scheduled", "forward", True),
        "alphabetical": reduced("scheduled", "names", False),
        "whole": reduced("whole", "forward", False),
        "dear": {"kind": "dear", "engine": "fifo", "group_bytes": options.group_bytes},
        "sequential": {"kind": "sequential", "engine": "fifo"},
        "ddp": {"kind": "ddp"},
        **{
            overlap: {"kind": "optimizer", "engine": "defaults", "overlap": overlap}
            for overlap in ("backward", "next-forward", "reduce-scatter")
        },
    }
    chosen = {}
    for name in options.ways:
        plain, _, sizes = name.partition("@")
        chosen[name] = ways[plain]
        if sizes:
            chosen[name] = {**ways[plain], "engine": sizes}
            engines[sizes] = {**engines["scheduled"], **parse_sizes(sizes)}
    wanted = {each.get("engine") for each in chosen.values()} | {"scheduled"}
    return chosen, {name: each for name, each in engines.items() if name in wanted}


def run(options: argparse.Namespace, cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What every rank reports."""
    ways, engines = ways_and_engines(options)
    secret = secrets.token_bytes(32)
    scale = max(1.0, 1e9 / options.rate)
    with (
        shaped_links.build(options.ranks, options.rate) as lab,
        tempfile.TemporaryDirectory() as at,
    ):
        store = StoreServer(lab.gateway, 0, secret)
        task = {
            "ranks": options.ranks,
            "store": f"{lab.gateway}:{store.port}",
            "addresses": [lab.address(rank) for rank in range(options.ranks)],
            "secret": secret.hex(),
            "gloo": f"file://{at}/gloo",
            "engines": engines,
            "ways": ways,
            "measured": "scheduled",
            "sizes": [int(each / scale) // 64 * 64 for each in LINK_SIZES],
            "repeats": options.repeats,
            "cells": cells,
            "results": at,
        }
        path = Path(at, "task.json")
        path.touch(mode=0o600)
        path.write_text(json.dumps(task))
        try:
            start(options, lab, path)
        finally:
            store.close()
        print(f"packets dropped by the shapers: {sum(lab.dropped())}")
        return [json.loads(Path(at, f"{rank}.json").read_text()) for rank in range(options.ranks)]


def start(options: argparse.Namespace, lab: shaped_links.Lab, task: Path) -> None:
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "RABIT_LOG_LEVEL": "warning"}
    processes = [
        subprocess.Popen(
            [
                *lab.command(rank),
                sys.executable,
                str(HERE / "schedule_rank.py"),
                str(task),
                str(rank),
            ],
            env=environ,
        )
        for rank in range(options.ranks)
    ]
    shaped_links.finish(processes, options.timeout)


def step_times(reports: list[dict[str, Any]], cell: int, way: str) -> list[float]:
    return shaped_links.step_times([each["cells"][cell]["moments"][way] for each in reports])


def interval(statistic: Callable[..., float], *samples: Sequence[float]) -> tuple[float, float]:
    """95 % bootstrap interval of a statistic of samples."""
    chooser = random.Random(1)
    found = sorted(
        statistic(*(chooser.choices(each, k=len(each)) for each in samples)) for _ in range(1000)
    )
    return found[25], found[975]


def ratio_of_medians(base: Sequence[float], times: Sequence[float]) -> float:
    return statistics.median(base) / statistics.median(times)


def merged(layers: list[Layer], limit: int) -> list[Layer]:
    """What travels as one is ready with its last backward and needed by its first forward."""
    groups = neighbours([each.bytes for each in layers], limit)
    return [
        Layer(
            sum(layers[index].forward for index in group),
            sum(layers[index].backward for index in group),
            sum(layers[index].bytes for index in group),
        )
        for group in groups
    ]


def predicted(way: str, layers: list[Layer], slope: float, group_bytes: int) -> float:
    """The model's step time with the measured link; for orders without a formula, simulated."""
    way = way.partition("@")[0]
    if way == "dear":
        layers = merged(layers, group_bytes)
    costs = [slope * each.bytes for each in layers]
    formulas = {
        "barrier": barrier,
        "crossing-fifo": barrier,
        "priority-barrier": barrier,
        "crossing": crossing,
        "dear": dear,
        "sequential": sequential,
        "ddp": barrier,
        "backward": barrier,
        "next-forward": crossing,
        "reduce-scatter": crossing,
    }
    if way in formulas:
        return formulas[way](layers, costs)
    order = priorities("names" if way == "alphabetical" else "forward", len(layers))
    return simulate(layers, costs, order or [], is_whole=way == "whole")


def show(options: argparse.Namespace, cells: list[dict[str, Any]], reports: list[Any]) -> list[Any]:
    """Prints and returns a row for each way of each cell."""
    slope, latency = reports[0]["seconds_per_byte"], reports[0]["latency"]
    share = 2 * (options.ranks - 1) / options.ranks
    print(
        f"{options.ranks} ranks at {options.rate / 1e6:g} Mbit/s: beta {slope * 1e9:.2f} ns/byte "
        f"(goodput {share * 8 / slope / 1e6:.0f} Mbit/s), theta {latency * 1e3:.2f} ms"
    )
    for size, seconds in reports[0]["times"].items():
        print(f"  allreduce of {int(size):>9} bytes: {seconds * 1e3:8.2f} ms")
    rows = []
    for number, cell in enumerate(cells):
        sizes = reports[0]["cells"][number]["bytes"]
        layers = scaled(cell["shape"], cell["compute"], sum(sizes), options.ranks)
        costs = [slope * size for size in sizes]
        alone = statistics.median(step_times(reports, number, "silent"))
        slowed = alone / cell["compute"]
        layers = [Layer(e.forward * slowed, e.backward * slowed, e.bytes) for e in layers]
        ideal, with_barrier = crossing(layers, costs), barrier(layers, costs)
        print(
            f"\n{cell['shape']}, rho {cell['rho']:g}: C {alone:.3f} s, S {sum(sizes) / 1e6:.1f} MB, "
            f"M {sum(costs):.3f} s, T* {ideal:.3f} s, T_bar {with_barrier:.3f} s, "
            f"{cell['turns']} x {cell['steps']} steps"
        )
        bases = {base: step_times(reports, number, base) for base in BASES if base in cell["ways"]}
        for way in cell["ways"]:
            times = step_times(reports, number, way)
            took = statistics.median(times)
            low, high = interval(lambda found, t=ideal: t / statistics.median(found), times)
            model = predicted(way, layers, slope, options.group_bytes)
            line = (
                f"  {way:<21}{took:7.3f} s  model {model:.3f} ({took / model:.3f})  "
                f"epsilon {ideal / took:.3f} [{low:.3f}, {high:.3f}]"
            )
            row = {**cell, "way": way, "seconds": took, "epsilon": ideal / took, "model": model}
            for name, base in bases.items():
                if name == way:
                    continue
                ratio = statistics.median(base) / took
                low, high = interval(ratio_of_medians, base, times)
                line += f"  {ratio:.3f} x {name} [{low:.3f}, {high:.3f}]"
                row[f"over_{name}"] = ratio
            print(line, flush=True)
            rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rate", type=parse_rate, default=1e9, help="of each link, as 100M or 1G")
    parser.add_argument("--shapes", default="vgg,resnet,lm", help=f"of {', '.join(SHAPES)}")
    parser.add_argument("--rho", default="1", help="communication over computation, a list")
    parser.add_argument(
        "--compute", type=float, default=0.5, help="seconds of a step's computation"
    )
    parser.add_argument("--ways", default="barrier,crossing,dear,ddp,next-forward")
    parser.add_argument("--turns", type=int, default=3, help="turns of each way")
    parser.add_argument("--steps", type=int, default=5, help="timed steps of a turn")
    parser.add_argument(
        "--repeats", type=int, default=5, help="of each size that measures the link"
    )
    parser.add_argument("--partition-bytes", type=int, help="instead of the engine's own choice")
    parser.add_argument("--fusion-bytes", type=int, help="instead of the engine's own choice")
    parser.add_argument("--credit-bytes", type=int, help="instead of the engine's own choice")
    parser.add_argument("--lanes", type=int, help="instead of the engine's own choice")
    parser.add_argument(
        "--group-bytes",
        type=int,
        default=512 << 10,
        help="of neighbours that travel as one in dear",
    )
    parser.add_argument("--timeout", type=float, default=1800, help="seconds for all")
    parser.add_argument("--json", type=Path, help="file for rows and the ranks' reports")
    options = parser.parse_args()
    options.ways = options.ways.split(",")
    reason = shaped_links.why_not()
    if reason:
        print(f"skipped: links cannot be shaped here: {reason}")
        return
    cells = [
        {
            "shape": shape,
            "rho": float(rho),
            "compute": options.compute,
            "turns": options.turns,
            "steps": options.steps,
            "ways": options.ways,
        }
        for shape in options.shapes.split(",")
        if shape
        for rho in options.rho.split(",")
    ]
    reports = run(options, cells)
    rows = show(options, cells, reports)
    if options.json:
        options.json.write_text(json.dumps({"rows": rows, "reports": reports}))


if __name__ == "__main__":
    main()
