"""What the modes of overlap cost where there is nothing to hide: real training on one host.

    rabitrun -np 2 python tests/bench/overlap_cost.py

A deep narrow and a shallow wide model, two optimizers; the modes take turns.  Printed are the medians
of wall and processor time of a step on rank 0.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch
from torch import nn

import rabit_torch as rabit

MODES = ("backward", "next-forward", "reduce-scatter")
TURNS, STEPS = 7, 15


def deep() -> tuple[nn.Module, torch.Tensor]:
    layers = [each for _ in range(40) for each in (nn.Linear(128, 128), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(128, 10)), torch.randn(32, 128)


def wide() -> tuple[nn.Module, torch.Tensor]:
    model = nn.Sequential(
        nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 256)
    )
    return model, torch.randn(64, 256)


def measure(make: Any, optimizer: Any) -> dict[str, tuple[float, float]]:
    """Seconds of a step for each mode: wall time and processor time."""
    runs = {}
    for mode in MODES:
        torch.manual_seed(0)
        model, x = make()
        wrapped = rabit.DistributedOptimizer(
            optimizer(model.parameters()), model.named_parameters(), overlap=mode
        )
        runs[mode] = model, x, wrapped
    found: dict[str, list[tuple[float, float]]] = {mode: [] for mode in MODES}
    for turn in range(TURNS):
        for mode, (model, x, wrapped) in runs.items():
            rabit.barrier()
            wall, processor = time.perf_counter(), time.process_time()
            for _ in range(STEPS):
                wrapped.zero_grad()
                model(x).square().mean().backward()
                wrapped.step()
            wrapped.flush()
            took = time.perf_counter() - wall, time.process_time() - processor
            if turn:
                found[mode].append((took[0] / STEPS, took[1] / STEPS))
    return {
        mode: (statistics.median(t[0] for t in times), statistics.median(t[1] for t in times))
        for mode, times in found.items()
    }


def main() -> None:
    torch.set_num_threads(1)
    rabit.init()
    for make in (deep, wide):
        for name, optimizer in (
            ("SGD", lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9)),
            ("Adam", lambda p: torch.optim.Adam(p, lr=1e-3)),
        ):
            for mode, (wall, processor) in measure(make, optimizer).items():
                if rabit.rank() == 0:
                    print(
                        f"{make.__name__:<5} {name:<5}{mode:<16}{wall * 1e3:7.2f} ms, "
                        f"processor {processor * 1e3:6.2f} ms",
                        flush=True,
                    )
    rabit.shutdown()


if __name__ == "__main__":
    main()
