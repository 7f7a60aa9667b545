"""Parameters on summation servers, and one worker that is three times slower than the others.

    python tests/bench/asynchronous.py [--slower 3] [--servers 2] [--steps 240] [--turns 3]

4 ranks learn digits by `DistributedOptimizer` with RABIT_PS_ASYNC=1.  A step computes for 20 ms, in which the
rank sleeps, so that ranks do not want for cores.  "alone": no exchange.  "even": asynchronous steps, and nobody is
slow.  "slow": the same, and the last rank is slower; it takes fewer steps.  "bounded": the same with a staleness of 4,
and all ranks take as many steps as the slow one.  "mean": gradients are averaged in every step, and no rank is
slow, which is the accuracy to reach.  All take turns, behind those of "bounded".

The verdict: beside a slow one the others make at least 0.95 steps for one of "even", nobody is further ahead than the
bound, and "slow" is right at most a point less often than "mean".
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

WAYS = ("alone", "even", "slow", "mean")
RANKS, COMPUTE_S, FIRST, BATCH, LR, BOUND = 4, 0.02, 5, 32, 0.4, 4
LEAST_SPEED, MOST_POINTS = 0.95, 1.0


class Run:
    """One training run by one way; every rank makes the same ones."""

    def __init__(self, options: argparse.Namespace, way: str, turn: int) -> None:
        import rabit

        self._options, self._way = options, way
        self._rank = rabit.rank()
        self._is_slow = self._rank == RANKS - 1 and way in ("slow", "bounded")
        digits = load_digits()
        parts = train_test_split(
            (digits.data / 16).astype(np.float32), digits.target, test_size=0.25, random_state=0
        )
        self._train, self._test, self._labels, self._answers = map(torch.tensor, parts)
        torch.manual_seed(turn)
        self._model = torch.nn.Sequential(
            torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)
        )
        self._chance = torch.Generator().manual_seed(1000 * turn + self._rank)
        self._optimizer = self._make_optimizer(f"{way}.{turn}")

    def _make_optimizer(self, prefix: str) -> torch.optim.Optimizer:
        import rabit_torch

        is_async = self._way not in ("alone", "mean")
        # Steps of all ranks add up on the servers.
        rate = LR / RANKS if is_async else LR
        optimizer = torch.optim.SGD(self._model.parameters(), lr=rate)
        if not is_async:
            return optimizer
        # The servers keep what they have under a name.
        named = [(f"{prefix}.{name}", each) for name, each in self._model.named_parameters()]
        bound = BOUND if self._way == "bounded" else 0
        return rabit_torch.DistributedOptimizer(optimizer, named_parameters=named, staleness=bound)

    def train(self) -> float:
        """Seconds of a step, in the median."""
        import rabit

        steps = self._options.steps
        if self._is_slow or self._way == "bounded":
            steps = int(steps / self._options.slower)
        compute = COMPUTE_S * (self._options.slower if self._is_slow else 1)
        times = []
        rabit.barrier(name="begin")
        for _ in range(steps):
            began = time.perf_counter()
            time.sleep(compute)
            chosen = torch.randint(len(self._train), (BATCH,), generator=self._chance)
            self._optimizer.zero_grad()
            found = self._model(self._train[chosen])
            torch.nn.functional.cross_entropy(found, self._labels[chosen]).backward()
            if self._way == "mean":
                self._average()
            self._optimizer.step()
            times.append(time.perf_counter() - began)
        rabit.barrier(name="end")
        return statistics.median(times[FIRST:])

    def _average(self) -> None:
        import rabit

        for number, each in enumerate(self._model.parameters()):
            assert each.grad is not None
            rabit.allreduce_(each.grad.numpy(), name=f"mean.{number}", op=rabit.Average)

    def accuracy(self) -> float:
        """In percent, of the digits that nobody has trained with."""
        if self._way not in ("alone", "mean"):
            # What a rank has lies behind by what others have done since its last step.
            for group in self._optimizer.param_groups:
                group["lr"] = 0.0
            self._optimizer.step()
        with torch.no_grad():
            right = self._model(self._test).argmax(1) == self._answers
        return 100 * right.float().mean().item()


def work(options: argparse.Namespace) -> None:
    import rabit

    torch.set_num_threads(1)
    rabit.init()
    seconds: dict[str, list[float]] = {way: [] for way in ("bounded", *WAYS)}
    right: dict[str, list[float]] = {way: [] for way in seconds}

    def run(way: str, turn: int) -> None:
        one = Run(options, way, turn)
        seconds[way].append(one.train())
        right[way].append(one.accuracy())
        rabit.barrier(name="all have looked")

    for turn in range(options.turns):
        run("bounded", turn)
    bounded = rabit.statistics()["backend_details"]["ps"]["updates"]
    for turn in range(options.turns):
        for way in WAYS[turn % len(WAYS) :] + WAYS[: turn % len(WAYS)]:
            run(way, turn)
    mine = {"seconds": seconds, "right": right, "bounded": bounded}
    everybody = rabit.allgather_object(mine, name="found")
    if rabit.rank() == 0:
        Path(options.result).write_text(json.dumps(everybody))
    rabit.shutdown()


def show(options: argparse.Namespace, everybody: list[dict[str, Any]]) -> bool:
    """Prints the table; whether all of the verdict holds."""
    others = everybody[:-1]
    print(
        f"{RANKS} ranks, {options.servers} servers, one rank {options.slower:g} times slower, "
        f"{options.turns} turns of {options.steps} steps"
    )
    speeds = {}
    for way in ("bounded", *WAYS):
        pairs = [
            even / own
            for each in others
            for even, own in zip(each["seconds"]["even"], each["seconds"][way], strict=True)
        ]
        speeds[way] = statistics.median(pairs)
        step_ms = 1e3 * statistics.median(each for one in others for each in one["seconds"][way])
        points = statistics.mean(each for one in everybody for each in one["right"][way])
        print(f"{way:8}{step_ms:8.2f} ms a step, speed {speeds[way]:.3f}, {points:.2f} % right")
    means = {
        way: statistics.mean(each for one in everybody for each in one["right"][way])
        for way in ("slow", "mean")
    }
    keeps = speeds["slow"] >= LEAST_SPEED
    learns = means["slow"] >= means["mean"] - MOST_POINTS
    ahead = max(each["bounded"]["ahead_max"] for each in everybody)
    waited = sum(each["bounded"]["steps_waited"] for each in everybody)
    steps = sum(each["bounded"]["steps"] for each in everybody)
    passes = keeps and learns and ahead <= BOUND
    print(
        f"bounded: {waited} of {steps} steps waited, at most {ahead} ahead (at most {BOUND})\n"
        f"speed beside a slow rank {speeds['slow']:.3f} (at least {LEAST_SPEED}), "
        f"{means['slow'] - means['mean']:+.2f} points (at least -{MOST_POINTS:g}): "
        f"{'met' if passes else 'missed'}"
    )
    return passes


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--slower", type=float, default=3.0, help="times as long as the others")
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=240)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--result", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.result:
        work(options)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, "result.json")
        launch = [sys.executable, "-m", "rabit.launch", "-np", str(RANKS)]
        launch += ["-s", str(options.servers), "--ps-async", sys.executable, *sys.argv]
        environ = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run([*launch, "--result", str(result)], check=True, env=environ, timeout=900)
        return 0 if show(options, json.loads(result.read_text())) else 1


if __name__ == "__main__":
    sys.exit(main())
