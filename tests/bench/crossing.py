"""Step times of DistributedOptimizer's modes: emulated devices on links shaped by the kernel.

    sudo python tests/bench/crossing.py                      # 4 ranks at 1 Gbit/s, VGG16's shape, rho = 1
    sudo python tests/bench/crossing.py --shapes resnet --modes backward,next-forward
    sudo python tests/bench/crossing.py --shapes tied --rho 0.5 --modes next-forward,next-forward+rows
    sudo python tests/bench/crossing.py --rho 0.25 --modes backward,auto

Like tests/bench/schedule.py, but through torch: a layer's forward and backward occupy a clock instead
of a processor, while hooks, packs, waits and the optimizer's updates are real.  Every mode has a model
of its own; all take turns.  T* is the shortest step that any order of communication can reach.

In the shape "tied" the first layer looks up rows of a table, and the last one multiplies by it; in
"lookup" the table is the same and only the first layer uses it.  "+rows" is row_sparse for the table.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from harness import links as shaped_links
from schedule_device import Device
from schedule_model import Job, shortest
from schedule_shapes import SHAPES, scaled

import rabit
import rabit_torch
from rabit.rendezvous.discovery import StoreServer
from rabit.tuning.step_time import barrier, crossing, dear

WARM_UP = 3
AUTO_STEPS = 26  # that overlap="auto" takes to decide, if it tries another mode
TABLE_WIDTH = 64
FORMULAS = {"backward": barrier, "next-forward": crossing, "reduce-scatter": dear}


def emulated(
    layers: list[Any], spans: list[Any] | None = None, shape: str = "", touched: float = 0.0
) -> torch.nn.Module:
    """A model whose layers have the gradients of `layers`, each a matrix and a small bias.

    shape: for "tied" and "lookup", the first layer has a table instead; `touched` is the share of
    its rows that this rank looks up in every step.
    spans: gets (what, layer, begin, end) of all that the device does.
    """
    device = Device()

    def note(what: str, number: int, begin: float) -> None:
        if spans is not None:
            spans.append((what, number, begin, time.perf_counter()))

    class Occupy(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, x: Any, number: int, *weights: Any) -> Any:
            context.number, context.like = number, weights
            begin = time.perf_counter()
            device.run(layers[number].forward)
            note("forward", number, begin)
            return x.clone()

        @staticmethod
        def backward(context: Any, grad: Any) -> Any:
            begin = time.perf_counter()
            device.continue_for(layers[context.number].backward)
            note("backward", context.number, begin)
            return grad, None, *(torch.zeros(each.shape) for each in context.like)

    class Layer(torch.nn.Module):
        def __init__(self, number: int, size: int) -> None:
            super().__init__()
            self.number = number
            self.weight = torch.nn.Parameter(torch.zeros(max(1, size - 64)))
            self.bias = torch.nn.Parameter(torch.zeros(64))

        def forward(self, x: Any) -> Any:
            # Views are what a kernel would read; taking them waits for the update.
            return Occupy.apply(x, self.number, self.weight.view(-1), self.bias.view(-1))

    class Lookup(torch.nn.Module):
        def __init__(self, size: int) -> None:
            super().__init__()
            rows = max(1, size // TABLE_WIDTH)
            self.table = torch.nn.Embedding.from_pretrained(
                torch.zeros(rows, TABLE_WIDTH), freeze=False
            )
            generator = torch.Generator().manual_seed(rabit.rank())
            count = max(1, round(touched * rows))
            self.words = torch.randperm(rows, generator=generator)[:count]

        def forward(self, x: Any) -> Any:
            return Occupy.apply(x + self.table(self.words).sum(), 0)

    class Head(torch.nn.Module):
        def __init__(self, number: int, table: torch.nn.Parameter) -> None:
            super().__init__()
            self.number, self.table = number, table

        def forward(self, x: Any) -> Any:
            return Occupy.apply(x, self.number, self.table.t())

    modules: list[torch.nn.Module] = [Layer(n, each.bytes // 4) for n, each in enumerate(layers)]
    if shape in ("tied", "lookup"):
        modules[0] = lookup = Lookup(layers[0].bytes // 4)
        if shape == "tied":
            modules[-1] = Head(len(layers) - 1, lookup.table.weight)
    return torch.nn.Sequential(*modules)


def measure_link(sizes: list[int]) -> float:
    """Seconds per byte of an allreduce, from a fit over `sizes`."""
    times = []
    for size in sizes:
        buffer = torch.ones(size // 4)
        found = []
        for _ in range(5):
            rabit.barrier()
            begin = time.perf_counter()
            rabit_torch.allreduce_(buffer, name=f"link{size}")
            took = torch.tensor([time.perf_counter() - begin])
            found.append(rabit_torch.allreduce(took, op=rabit.Max).item())
        times.append(statistics.median(found[1:]))
    mean_x, mean_y = statistics.mean(sizes), statistics.mean(times)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in zip(sizes, times, strict=True))
    fitted = slope / sum((x - mean_x) ** 2 for x in sizes)
    return float(rabit_torch.broadcast(torch.tensor([fitted], dtype=torch.float64), 0).item())


def start_engine(task: dict[str, Any], rank: int) -> None:
    torch.set_num_threads(1)
    rabit_torch.init(
        config=rabit.Config.from_environ(
            rank=rank,
            size=task["ranks"],
            cross_rank=rank,
            cross_size=task["ranks"],
            host_key=f"lab{rank}",
            bind_address=task["addresses"][rank],
            store_address=task["store"],
            secret=bytes.fromhex(task["secret"]),
            transport="tcp",
        )
    )


def run_rank(task: dict[str, Any], rank: int) -> None:
    start_engine(task, rank)
    slope = measure_link([1 << 18, 1 << 20, 1 << 22, 1 << 23])
    report: dict[str, Any] = {"slope": slope, "cells": {}}
    for shape in task["shapes"]:
        total = int(task["rho"] * task["compute"] / slope)
        layers = scaled(shape, task["compute"], total, task["ranks"])
        runs: dict[str, tuple[torch.nn.Module, Any]] = {}
        for mode in ["alone", *task["modes"]]:
            model = emulated(layers, shape=shape, touched=task["touched"])
            optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
            if mode != "alone":
                overlap, _, rows = mode.partition("+")
                optimizer = rabit_torch.DistributedOptimizer(
                    optimizer,
                    model.named_parameters(),
                    overlap=overlap,
                    row_sparse=["0.table.weight"] if rows else False,
                )
            runs[mode] = model, optimizer
        moments: dict[str, list[list[float]]] = {mode: [] for mode in runs}
        x = torch.zeros(1, requires_grad=True)
        chosen = ""
        for turn in range(task["turns"] + 1):
            for mode, (model, optimizer) in runs.items():
                rabit.barrier()
                began = []
                first = AUTO_STEPS if mode == "auto" else WARM_UP
                for _ in range((first if turn == 0 else task["steps"]) + 1):
                    began.append(time.perf_counter())
                    optimizer.zero_grad()
                    model(x).sum().backward()
                    optimizer.step()
                began.append(time.perf_counter())
                if mode != "alone":
                    optimizer.flush()
                if turn:
                    moments[mode].append(began[1:])
                elif mode == "auto":
                    chosen = json.dumps(rabit.statistics()["overlap"])
        report["cells"][shape] = {
            "moments": moments,
            "bytes": [each.bytes for each in layers],
            "chosen": chosen,
        }
    if rank == 0:
        report["processor"] = time.process_time()
    Path(task["results"], f"{rank}.json").write_text(json.dumps(report))
    rabit.shutdown()


def run(options: argparse.Namespace, script: str, task: dict[str, Any]) -> list[dict[str, Any]]:
    """Runs `script` as every rank of a lab with `task`; returns what each has reported."""
    secret = secrets.token_bytes(32)
    rate = float(options.rate[:-1]) * {"M": 1e6, "G": 1e9}[options.rate[-1]]
    with shaped_links.build(options.ranks, rate) as lab, tempfile.TemporaryDirectory() as at:
        store = StoreServer(lab.gateway, 0, secret)
        task = {
            **task,
            "ranks": options.ranks,
            "store": f"{lab.gateway}:{store.port}",
            "addresses": [lab.address(rank) for rank in range(options.ranks)],
            "secret": secret.hex(),
            "results": at,
        }
        path = Path(at, "task.json")
        path.touch(mode=0o600)
        path.write_text(json.dumps(task))
        environ = {**os.environ, "OMP_NUM_THREADS": "1"}
        processes = [
            subprocess.Popen(
                [*lab.command(rank), sys.executable, script, "--rank", str(rank), str(path)],
                env=environ,
            )
            for rank in range(options.ranks)
        ]
        try:
            shaped_links.finish(processes, options.timeout)
        finally:
            store.close()
        return [json.loads(Path(at, f"{rank}.json").read_text()) for rank in range(options.ranks)]


def with_rows(
    shape: str, layers: list[Any], costs: list[float], touched: float, ranks: int, overlap: str
) -> float | None:
    """The shortest step where the table's lookup sends rows, and its product all rows at once.

    An allgather of rows brings those of every rank, an allreduce moves a gradient twice.
    """
    if overlap not in ("backward", "next-forward"):
        return None
    forward = sum(each.forward for each in layers)
    jobs, before, after = [], sum(each.backward for each in layers), forward
    for index, (layer, cost) in enumerate(zip(layers, costs, strict=True)):
        share = touched * ranks / 2 if index == 0 else 1.0
        tail = after if overlap == "next-forward" else forward
        jobs.append(Job(before, share * cost, tail))
        before, after = before - layer.backward, after - layer.forward
    if shape == "tied":
        jobs[-1] = Job(layers[-1].backward, costs[0], forward)
    computing = sum(each.forward + each.backward for each in layers)
    return max(computing, shortest(jobs))


def show(options: argparse.Namespace, reports: list[dict[str, Any]]) -> None:
    slope = reports[0]["slope"]
    print(f"{options.ranks} ranks at {options.rate}bit/s, beta {slope * 1e9:.2f} ns/byte")
    for shape, cell in reports[0]["cells"].items():
        times = {
            mode: shaped_links.step_times(
                [report["cells"][shape]["moments"][mode] for report in reports]
            )
            for mode in cell["moments"]
        }
        took = {mode: statistics.median(each) for mode, each in times.items()}
        layers = scaled(shape, took["alone"], sum(cell["bytes"]), options.ranks)
        costs = [slope * each.bytes for each in layers]
        ideal = crossing(layers, costs)
        print(
            f"\n{shape}, rho {options.rho:g}: {sum(cell['bytes']) / 1e6:.1f} MB, C with the updates "
            f"{took['alone']:.3f} s, T* {ideal:.3f} s"
        )
        for mode in options.modes.split(","):
            overlap, _, rows = mode.partition("+")
            if rows:
                model = with_rows(shape, layers, costs, options.touched, options.ranks, overlap)
            else:
                model = FORMULAS[overlap](layers, costs) if overlap in FORMULAS else None
            predicted = f"  model {model:.3f} s ({took[mode] / model:.3f})" if model else ""
            speedup = took.get("backward", took[mode]) / took[mode]
            print(
                f"  {mode:<18}{took[mode]:7.3f} s, {took[mode] / took['alone']:.3f} C  "
                f"epsilon {ideal / took[mode]:.3f}  speed-up {speedup:.3f}{predicted}  "
                f"n {len(times[mode])}"
            )
        if cell["chosen"]:
            print(f"  auto: {cell['chosen']}")


def main() -> None:
    if sys.argv[1:2] == ["--rank"]:
        run_rank(json.loads(Path(sys.argv[3]).read_text()), int(sys.argv[2]))
        return
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rate", default="1G", help="of each link, as 100M or 1G")
    parser.add_argument("--shapes", default="vgg", help=f"of {', '.join(SHAPES)}")
    parser.add_argument("--rho", type=float, default=1.0, help="communication over computation")
    parser.add_argument(
        "--compute", type=float, default=0.5, help="seconds of a step's computation"
    )
    parser.add_argument("--modes", default="backward,next-forward,reduce-scatter")
    parser.add_argument(
        "--touched", type=float, default=0.01, help="share of the table that a rank looks up"
    )
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--steps", type=int, default=5, help="timed steps of a turn")
    parser.add_argument("--timeout", type=float, default=200, help="seconds for all")
    options = parser.parse_args()
    reason = shaped_links.why_not()
    if reason:
        print(f"skipped: links cannot be shaped here: {reason}")
        return
    task = {key: getattr(options, key) for key in ("compute", "rho", "turns", "steps", "touched")}
    lists = {"shapes": options.shapes.split(","), "modes": options.modes.split(",")}
    show(options, run(options, __file__, {**task, **lists}))


if __name__ == "__main__":
    main()
