"""Whether others wait for a slow rank: seconds of their step under `async`, beside steps without any exchange.

    python tests/bench/methods_waits.py [--slower 3] [--delay-ms 5] [--save build/waits.json]

4 ranks that are processes.  A step computes for 20 ms, on one rank three times as long and 5 ms more, and all
ranks sleep meanwhile, so that they do not want for cores.  Both ways take turns.  Bagua claims of its
asynchronous average that the others' steps take at most 1.05 times as long.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

RANKS, STEPS, FIRST, COMPUTE_S = 4, 40, 5, 0.02
WAYS = {"alone": "local:every=1000000", "async": "async", "mean": "mean"}
MOST = 1.05
COUNT = 1 << 18  # entries of the model


def rank_main(options: argparse.Namespace) -> None:
    import rabit
    from rabit import strategies

    rabit.init()
    slow = COMPUTE_S * options.slower + options.delay_ms / 1e3
    compute = slow if rabit.rank() == RANKS - 1 else COMPUTE_S
    gradient = {"w": np.ones((COUNT // 1024, 1024), np.float32)}
    trainers = {
        way: strategies.ArrayTrainer(
            {"w": np.zeros_like(gradient["w"])}, strategies.make(text), lr=0.01, name=way
        )
        for way, text in WAYS.items()
    }
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(options.turns):
        for way, trainer in trainers.items():
            rabit.barrier()
            for step in range(STEPS):
                begin = time.perf_counter()
                time.sleep(compute)
                trainer.step(gradient)
                if step >= FIRST:
                    found[way].append(time.perf_counter() - begin)
            trainer.pipeline.finish()
    mine = {way: statistics.median(each) for way, each in found.items()}
    everybody = rabit.allgather_object(mine, name="found")
    if rabit.rank() == 0:
        conclude(options, [dict(each) for each in everybody[:-1]])
    rabit.shutdown()


def conclude(options: argparse.Namespace, others: list[dict[str, float]]) -> None:
    """others: seconds of a step by way, of the ranks that are not slow."""
    mean = {way: statistics.mean(each[way] for each in others) for way in WAYS}
    ratio = mean["async"] / mean["alone"]
    for way, seconds in mean.items():
        print(f"{way:8}{seconds * 1e3:8.2f} ms a step, {seconds / mean['alone']:.3f} of alone")
    print(f"async: {'holds' if ratio <= MOST else f'more than {MOST:g}'}", flush=True)
    if options.save:
        options.save.parent.mkdir(parents=True, exist_ok=True)
        options.save.write_text(json.dumps({"seconds": mean, "ratio": ratio}, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--slower", type=float, default=3.0, help="times as long as the others")
    parser.add_argument("--delay-ms", type=float, default=5.0, help="more, of the slow rank")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--save", type=Path, help="a JSON file for methods_verdict.py")
    options = parser.parse_args()
    if "RABIT_RANK" in os.environ:
        rank_main(options)
        return
    job = ["-m", "rabit.launch", "-np", str(RANKS), "--transport", "tcp", sys.executable, __file__]
    sys.exit(subprocess.run([sys.executable, *job, *sys.argv[1:]], check=False).returncode)


if __name__ == "__main__":
    main()
