"""Step times of DistributedOptimizer's modes: emulated devices on links shaped by the kernel."""

from __future__ import annotations

import json
import statistics
import time
from typing import Any

import torch
from harness import case, lab_or_stop, on_ranks, rate, table, words
from harness.links import in_lab, step_times
from schedule_device import Device
from schedule_model import Job, shortest
from schedule_shapes import SHAPES, scaled

import rabit
import rabit_torch
from rabit.tuning import step_time

WARM_UP = 3
AUTO_STEPS = 26  # that overlap="auto" takes to decide, if it tries another mode
TABLE_WIDTH = 64
FORMULAS = {"backward": step_time.barrier, "next-forward": step_time.crossing, "reduce-scatter": step_time.dear}


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
            self.table = torch.nn.Embedding.from_pretrained(torch.zeros(rows, TABLE_WIDTH), freeze=False)
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


def crossing_rank(o: Any) -> dict[str, Any]:
    torch.set_num_threads(1)
    rabit_torch.init()
    slope = measure_link([1 << 18, 1 << 20, 1 << 22, 1 << 23])
    report: dict[str, Any] = {"slope": slope, "cells": {}}
    for shape in o.shapes:
        total = int(o.rho * o.compute / slope)
        layers = scaled(shape, o.compute, total, o.ranks)
        runs: dict[str, tuple[torch.nn.Module, Any]] = {}
        for mode in ["alone", *o.modes]:
            model = emulated(layers, shape=shape, touched=o.touched)
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
        for turn in range(o.turns + 1):
            for mode, (model, optimizer) in runs.items():
                rabit.barrier()
                began = []
                first = AUTO_STEPS if mode == "auto" else WARM_UP
                for _ in range((first if turn == 0 else o.steps) + 1):
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
        report["cells"][shape] = {"moments": moments, "bytes": [each.bytes for each in layers], "chosen": chosen}
    rabit.shutdown()
    return report


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


def show(o: Any, reports: list[dict[str, Any]]) -> None:
    slope = reports[0]["slope"]
    print(f"{o.ranks} ranks at {o.rate / 1e6:g} Mbit/s, beta {slope * 1e9:.2f} ns/byte")
    lines = []
    for shape, cell in reports[0]["cells"].items():
        times = {
            mode: step_times([report["cells"][shape]["moments"][mode] for report in reports])
            for mode in cell["moments"]
        }
        took = {mode: statistics.median(seconds) for mode, seconds in times.items()}
        layers = scaled(shape, took["alone"], sum(cell["bytes"]), o.ranks)
        costs = [slope * each.bytes for each in layers]
        ideal = step_time.crossing(layers, costs)
        print(
            f"\n{shape}, rho {o.rho:g}: {sum(cell['bytes']) / 1e6:.1f} MB, C with the updates "
            f"{took['alone']:.3f} s, T* {ideal:.3f} s"
        )
        for mode in o.modes:
            overlap, _, rows = mode.partition("+")
            if rows:
                model = with_rows(shape, layers, costs, o.touched, o.ranks, overlap)
            else:
                model = FORMULAS[overlap](layers, costs) if overlap in FORMULAS else None
            speedup = took.get("backward", took[mode]) / took[mode]
            predicted = [f"{model:.3f} s", took[mode] / model] if model else ["", ""]
            took_s, count = f"{took[mode]:.3f} s", len(times[mode])
            lines.append([shape, mode, took_s, ideal / took[mode], speedup, *predicted, count])
        if cell["chosen"]:
            print(f"  auto: {cell['chosen']}")
    table(["shape", "overlap", "step", "T* / step", "speed-up", "formula", "step / formula", "steps"], lines)


@case(
    ranks=4,
    rate=rate("1G"),
    shapes=words("vgg", f"of {', '.join(SHAPES)}"),
    rho=1.0,
    compute=0.5,
    modes=words("backward,next-forward,reduce-scatter", "auto, too, and +rows for row_sparse"),
    touched=0.01,
    turns=3,
    steps=5,
    timeout=200.0,
)
def crossing(o: Any) -> None:
    """Step times of DistributedOptimizer's modes: emulated devices on links shaped by the kernel.

    As `schedule`, but through torch: a layer's forward and backward occupy a clock instead of a processor, while
    hooks, packs, waits and the optimizer's updates are real. Every mode has a model of its own; all take turns. T* is
    the shortest step that any order of communication can reach. rho: communication over computation, which takes
    `compute` seconds. In the shape "tied" the first layer looks up rows of a table, and the last one multiplies by it;
    in "lookup" only the first layer uses it. A rank looks up `touched` of the rows.
    """
    with lab_or_stop(o.ranks, o.rate) as lab:
        show(o, on_ranks(crossing_rank, o, o.ranks, run=in_lab(lab, o.timeout)))
