"""What being elastic costs where nothing is lost: the same steps in plain and elastic jobs, in turns.

    python tests/faults/elastic_cost.py [--pairs 20] [--ranks 2] [--steps 200] [--batches] [--grows]

A step multiplies matrices, adds up a gradient of 1 MiB and updates as many parameters; the elastic job also commits
after every step, or, with --batches, as often as rabit.elastic.batches does by itself.  With --grows commits are votes.
With --replicas both jobs are elastic and have 1 MiB on each rank that is its own, of which one keeps a copy on another
host.  Printed are the medians of the pairs' differences, and the processor time of a rank.
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

folder, kind, steps, by_batches = pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), len(sys.argv) > 4
rabit.init()
own = {}
if kind in ("own", "copied"):
    own = {"own": np.ones(1 << 18, np.float32), "per_rank": ["own"], "replicas": int(kind == "copied")}
sampler = rabit.elastic.ElasticSampler(range(steps * rabit.size()))
state = rabit.elastic.ObjectState(step=0, sampler=sampler, weights=np.zeros(1 << 18, np.float32), **own)
matrix = np.random.default_rng(rabit.rank()).normal(size=(512, 512)).astype(np.float32)
times, used = [], []

def work():
    for _ in range(4):
        product = matrix @ matrix
    gradient = np.resize(product, 1 << 18)
    state.weights -= 1e-6 * rabit.allreduce(gradient, name="gradient")
    state.step += 1

def by_commits(state):
    while state.step < steps:
        work()
        state.commit()
        note()

def note(last=[time.perf_counter(), time.process_time()]):
    now = time.perf_counter(), time.process_time()
    times.append(now[0] - last[0])
    used.append(now[1] - last[1])
    last[:] = now

if kind == "plain":
    while state.step < steps:
        work()
        note()
elif by_batches:
    for batch in rabit.elastic.batches(sampler, state, batch_size=1):
        note()  # of the step before
        with batch:
            work()
else:
    rabit.elastic.run(by_commits)(state)
if rabit.rank() == 0:
    (folder / "times").write_text(json.dumps([times[20:], used[20:]]))
"""


# The allocator keeps what is freed: whether a step gets new pages from the kernel, which is a tenth of it, depended on
# what else lies in its heap.
ALLOCATOR = {"MALLOC_TRIM_THRESHOLD_": str(1 << 30), "MALLOC_MMAP_THRESHOLD_": str(1 << 25)}


def step_ms(kind: str, given: argparse.Namespace) -> tuple[float, float]:
    """The mean step of a job, and its processor time on rank 0; without what other work has interrupted."""
    ranks = given.ranks
    flags = {"plain": [], "grows": ["--min-np", "1", "--max-np", str(ranks)]}.get(kind, ["--min-np", "1"])
    if kind in ("own", "copied"):
        flags += ["-H", f"localhost:{ranks - ranks // 2},127.0.0.2:{ranks // 2}"]
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "train.py").write_text(SCRIPT)
        subprocess.run(
            [*(sys.executable, "-m", "rabit.launch", "-np", str(ranks), *flags),
             *(sys.executable, f"{name}/train.py", name, kind, str(given.steps), *["batches"] * given.batches)],
            env={**os.environ, **ALLOCATOR, "OMP_NUM_THREADS": "1"}, check=True, timeout=600,
        )  # fmt: skip
        wall, used = np.array(json.loads((Path(name) / "times").read_text()))
        is_own = wall < 1.5 * np.median(wall)
        return 1000 * float(wall[is_own].mean()), 1000 * float(used[is_own].mean())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--grows", action="store_true", help="a job that may grow, whose commits vote")
    parser.add_argument("--batches", action="store_true", help="the loop that commits by itself, not every step")
    parser.add_argument("--replicas", action="store_true", help="with and without copies of a rank's own part")
    given = parser.parse_args()
    kinds = ("own", "copied") if given.replicas else ("plain", "grows" if given.grows else "elastic")
    pairs = []
    for number in range(given.pairs):
        order = kinds if number % 2 == 0 else kinds[::-1]
        found = {each: step_ms(each, given) for each in order}
        pairs.append([found[each] for each in kinds])
    for what, table in zip(("a step", "its processor time on rank 0"), np.array(pairs).transpose(2, 1, 0), strict=True):
        base, other = table
        low, middle, high = np.percentile(100 * (other / base - 1), [25, 50, 75])
        print(f"{what}: {kinds[0]} {np.median(base):.2f} ms, {kinds[1]} {np.median(other):.2f} ms, {len(pairs)} pairs;")
        print(f"  {middle:+.2f} % in the median (quartiles {low:+.2f}, {high:+.2f} %)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
