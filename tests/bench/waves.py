"""Seconds of a step of two ranks: each alone, side by side, and in waves.

    python tests/bench/waves.py [--turns 3]

Each rank has a thread of its own, so that side by side costs neither of them anything where two cores are
free: the worst case for waves.  The ways run in turns; beside them stands the load of the machine.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time

LAYERS, WIDTH, BATCH, STEPS, FIRST = 24, 64, 2048, 40, 8
WAYS = {"alone": (1, 1), "side by side": (2, 1), "waves": (2, 2)}  # ranks, RABIT_WAVES


def rank_main() -> None:
    import torch

    import rabit_torch as rabit

    torch.set_num_threads(1)
    rabit.init()
    pairs = ((torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh()) for _ in range(LAYERS))
    model = torch.nn.Sequential(*(layer for pair in pairs for layer in pair))
    optimizer = rabit.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters()
    )
    waves, found = rabit.Waves(model), []
    batch = torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(rabit.rank()))
    for _ in range(STEPS):
        begin = time.monotonic()
        with waves.cycle():
            model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(time.monotonic() - begin)
    if rabit.rank() == 0:
        print(statistics.median(found[FIRST:]), flush=True)
    rabit.shutdown()


def measured(way: str) -> float:
    ranks, waves = WAYS[way]
    job = ["-m", "rabit.launch", "-np", str(ranks), "--waves", str(waves)]
    command = [sys.executable, *job, sys.executable, __file__]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(done.stdout.split()[-1])


def main() -> None:
    if "RABIT_RANK" in os.environ:
        rank_main()
        return
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    for turn in range(options.turns):
        for way in WAYS:
            seconds = measured(way)
            load = os.getloadavg()[0]
            print(
                f"turn {turn}  {way:13} {seconds * 1e3:7.1f} ms a step, load {load:.1f}", flush=True
            )


if __name__ == "__main__":
    main()
