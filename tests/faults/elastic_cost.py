"""What being elastic costs where nothing is lost: the same steps in plain and elastic jobs, in turns.

    python tests/faults/elastic_cost.py [--pairs 20] [--ranks 2] [--steps 200]

A step multiplies matrices, adds up a gradient of 1 MiB and updates as many parameters; the elastic job also commits
after every step, and, with --grows, votes in the commit.  Printed are the medians of the pairs' differences.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

SCRIPT = """
import json, pathlib, sys, time
import numpy as np
import rabit, rabit.elastic

folder, is_elastic, steps = pathlib.Path(sys.argv[1]), sys.argv[2] != "plain", int(sys.argv[3])
rabit.init()
state = rabit.elastic.ObjectState(step=0, weights=np.zeros(1 << 18, np.float32))
matrix = np.random.default_rng(rabit.rank()).normal(size=(512, 512)).astype(np.float32)
times = []

def train(state):
    while state.step < steps:
        began = time.perf_counter()
        for _ in range(4):
            product = matrix @ matrix
        gradient = np.resize(product, 1 << 18)
        state.weights -= 1e-6 * rabit.allreduce(gradient, name="gradient")
        state.step += 1
        if is_elastic:
            state.commit()
        times.append(time.perf_counter() - began)

(rabit.elastic.run(train) if is_elastic else train)(state)
if rabit.rank() == 0:
    (folder / "times").write_text(json.dumps(times[10:]))
"""


def step_ms(kind: str, ranks: int, steps: int) -> float:
    """The median step of a job."""
    flags = {"plain": [], "elastic": ["--min-np", "1"], "grows": ["--min-np", "1", "--max-np", str(ranks)]}[kind]
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "train.py").write_text(SCRIPT)
        subprocess.run(
            [*(sys.executable, "-m", "rabit.launch", "-np", str(ranks), *flags),
             *(sys.executable, f"{name}/train.py", name, kind, str(steps))],
            env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True, timeout=600,
        )  # fmt: skip
        return 1000 * float(np.median(json.loads((Path(name) / "times").read_text())))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--grows", action="store_true", help="a job that may grow, whose commits vote")
    given = parser.parse_args()
    kind = "grows" if given.grows else "elastic"
    pairs = []
    for number in range(given.pairs):
        order = ("plain", kind) if number % 2 == 0 else (kind, "plain")
        found = {each: step_ms(each, given.ranks, given.steps) for each in order}
        pairs.append((found["plain"], found[kind]))
    plain, elastic = np.array(pairs).T
    more = 100 * (elastic / plain - 1)
    low, middle, high = np.percentile(more, [25, 50, 75])
    print(f"plain {np.median(plain):.2f} ms a step, {kind} {np.median(elastic):.2f} ms, of {given.pairs} pairs")
    print(f"a step takes {middle:+.2f} % more in the median (quartiles {low:+.2f}, {high:+.2f} %)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
