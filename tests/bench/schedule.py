"""Step times beside the provable ideal: emulated devices on links shaped by the kernel."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from harness import Option, case, interval, lab_or_stop, links, on_ranks, rate, table, words
from schedule_model import simulate
from schedule_rank import neighbours, priorities, schedule_rank
from schedule_shapes import SHAPES, scaled

from rabit.tuning.step_time import Layer, barrier, crossing, dear, sequential

BASES = ("barrier", "ddp")  # what speed-ups are over
LINK_SIZES = (1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24)  # at 1 Gbit/s, that the link is measured with


def parse_sizes(text: str) -> dict[str, int]:
    """PARTITION:CREDIT:LANES, as in 512K:1M:2."""
    partition, credit, lanes = text.split(":")
    units = {"K": 1 << 10, "M": 1 << 20}
    size = {text: int(float(text[:-1]) * units[text[-1]]) for text in (partition, credit)}
    return {
        "partition_bytes": size[partition],
        "fusion_bytes": size[partition],
        "credit_bytes": size[credit],
        "lanes": int(lanes),
    }


def ways_and_engines(o: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the names on the command line mean."""
    scheduled = {
        key: value
        for key, value in {
            "partition_bytes": o.partition_bytes,
            "fusion_bytes": o.fusion_bytes,
            "credit_bytes": o.credit_bytes,
            "lanes": o.lanes,
        }.items()
        if value is not None
    }
    engines = {
        "scheduled": {"scheduler": "priority", **scheduled},
        "defaults": {},
        "fifo": {"scheduler": "fifo", "fusion_bytes": 64 << 20, "credit_bytes": 0},
        "whole": {"scheduler": "priority", "partition_bytes": 1 << 40, "fusion_bytes": 0, "credit_bytes": 1},
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
        "dear": {"kind": "dear", "engine": "fifo", "group_bytes": o.group_bytes},
        "sequential": {"kind": "sequential", "engine": "fifo"},
        "ddp": {"kind": "ddp"},
        **{
            overlap: {"kind": "optimizer", "engine": "defaults", "overlap": overlap}
            for overlap in ("backward", "next-forward", "reduce-scatter")
        },
    }
    chosen = {}
    for name in o.ways:
        plain, _, sizes = name.partition("@")
        chosen[name] = ways[plain]
        if sizes:
            chosen[name] = {**ways[plain], "engine": sizes}
            engines[sizes] = {**engines["scheduled"], **parse_sizes(sizes)}
    wanted = {each.get("engine") for each in chosen.values()} | {"scheduled"}
    return chosen, {name: each for name, each in engines.items() if name in wanted}


def step_times(reports: list[dict[str, Any]], cell: int, way: str) -> list[float]:
    return links.step_times([each["cells"][cell]["moments"][way] for each in reports])


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


def show(o: Any, cells: list[dict[str, Any]], reports: list[Any]) -> None:
    """Prints a row for each way of each cell."""
    slope, latency = reports[0]["seconds_per_byte"], reports[0]["latency"]
    share = 2 * (o.ranks - 1) / o.ranks
    print(
        f"{o.ranks} ranks at {o.rate / 1e6:g} Mbit/s: beta {slope * 1e9:.2f} ns/byte "
        f"(goodput {share * 8 / slope / 1e6:.0f} Mbit/s), theta {latency * 1e3:.2f} ms"
    )
    for size, seconds in reports[0]["times"].items():
        print(f"  allreduce of {int(size):>9} bytes: {seconds * 1e3:8.2f} ms")
    rows = []
    for number, cell in enumerate(cells):
        sizes = reports[0]["cells"][number]["bytes"]
        layers = scaled(cell["shape"], cell["compute"], sum(sizes), o.ranks)
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
            model = predicted(way, layers, slope, o.group_bytes)
            line = [cell["shape"], cell["rho"], way, f"{took:.3f} s", f"{model:.3f} s"]
            line += [ideal / took, f"{low:.3f}-{high:.3f}"]
            for name in BASES:
                if name not in bases or name == way:
                    line.append("")
                    continue
                low, high = interval(ratio_of_medians, bases[name], times)
                line.append(f"{statistics.median(bases[name]) / took:.3f} [{low:.3f}, {high:.3f}]")
            rows.append(line)
    heads = ["shape", "rho", "way", "step", "model", "T* / step", "interval", *(f"x {base}" for base in BASES)]
    table(heads, rows)


def optional(help: str) -> Option:
    return Option("", lambda text: int(text) if text else None, f"{help}; by default the engine's own choice")


@case(
    ranks=4,
    rate=rate("1G"),
    shapes=words("vgg,resnet,lm", f"of {', '.join(SHAPES)}"),
    rho=words("1", "communication over computation, with commas between"),
    compute=Option("0.5", float, "seconds of a step's computation"),
    ways=words("barrier,crossing,dear,ddp,next-forward"),
    turns=3,
    steps=Option("5", int, "timed steps of a turn"),
    repeats=Option("5", int, "of each size that measures the link"),
    partition_bytes=optional("of large tensors"),
    fusion_bytes=optional("of small ones"),
    credit_bytes=optional("that may be on the way"),
    lanes=optional("that exchange at the same time"),
    group_bytes=Option(str(512 << 10), int, "of neighbours that travel as one in dear"),
    timeout=1800.0,
)
def schedule(o: Any) -> None:
    """Step times beside the provable ideal: emulated devices on links shaped by the kernel.

        sudo python tests/bench schedule --rate 100M --ranks 8 --compute 3 --shapes vgg --rho 0.75,2
        sudo python tests/bench schedule --ways sequential,barrier,crossing-fifo,alphabetical,whole,crossing,dear
        sudo python tests/bench schedule --ways barrier,crossing,crossing@512K:1M:2   # part, credit, lanes

    backward, next-forward and reduce-scatter are the overlaps of DistributedOptimizer, with its own hooks, SGD and
    settings. Every rank has a network namespace; all ways to communicate live in the same processes and take turns. T*
    is the shortest step that any order of communication can reach with the measured link, T_bar the shortest while the
    update waits for all gradients (docs/explain/scheduling.md). Printed are T* / step with its 95 % bootstrap
    interval, what the model predicts, and the speed-up over rabit's own fused FIFO with a barrier and over DDP.
    """
    same = {name: getattr(o, name) for name in ("compute", "turns", "steps", "ways")}
    cells = [{"shape": shape, "rho": float(rho), **same} for shape in o.shapes for rho in o.rho]
    ways, engines = ways_and_engines(o)
    scale = max(1.0, 1e9 / o.rate)
    o.task = {
        "engines": engines, "ways": ways, "measured": "scheduled", "repeats": o.repeats, "cells": cells,
        "sizes": [int(size / scale) // 64 * 64 for size in LINK_SIZES],
    }  # fmt: skip
    with lab_or_stop(o.ranks, o.rate) as lab:
        reports = on_ranks(schedule_rank, o, o.ranks, run=links.in_lab(lab, o.timeout))
        print(f"packets dropped by the shapers: {sum(lab.dropped())}")
    show(o, cells, reports)
