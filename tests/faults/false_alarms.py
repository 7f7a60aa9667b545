"""Ranks that live on cores with too much to do: nobody may take one of them for lost.

    python tests/faults/false_alarms.py [--seconds 600] [--ranks 8] [--cores 2] [--burners 8] [--transport auto]

Eight ranks and eight programs that only compute share two cores.  The ranks compute for up to 50 ms and add up a
gradient, again and again; each holds the interpreter's lock for half a second now and then, and all together rest for
longer than the heartbeat timeout, so that only beats tell that they live.  Settings are the defaults.  Every sum must
be right and every rank there until the end.  Printed are the steps, the longest, and what came near: connections
that were made anew, as after half of the timeout without a word.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

SCRIPT = """
import json, pathlib, random, sys, time
import numpy as np
import rabit

folder, seconds = pathlib.Path(sys.argv[1]), float(sys.argv[2])
rabit.init()
dice = random.Random(rabit.rank())
together = random.Random(1)  # the same on all ranks
began, steps, longest = time.monotonic(), 0, 0.0
is_on = True
while is_on:
    start = time.monotonic()
    while time.monotonic() < start + dice.uniform(0, 0.05):
        sum(range(1000))
    if dice.random() < 0.002:
        sum(range(30_000_000))  # one operation of the interpreter, which keeps its lock
    gradient = np.full(50_000, rabit.rank() + 1.0)
    summed = rabit.allreduce(gradient, op=rabit.Sum, name="gradient")
    assert (summed == rabit.size() * (rabit.size() + 1) / 2).all()
    steps += 1
    longest = max(longest, time.monotonic() - start)
    if together.random() < 0.01:
        time.sleep(4)
    is_on = not rabit.any_rank(time.monotonic() > began + seconds)
restored = rabit.statistics()["backend_details"]["builtin"]["transport"]["connections_restored"]
(folder / f"{rabit.rank()}.json").write_text(json.dumps([steps, longest, restored]))
"""
BURNER = "while True: sum(range(1000))"


@contextlib.contextmanager
def burning(count: int) -> Iterator[None]:
    """So many programs that only compute, while the block runs."""
    burners = [subprocess.Popen([sys.executable, "-c", BURNER]) for _ in range(count)]
    try:
        yield
    finally:
        for each in burners:
            each.kill()
            each.wait()


def run(seconds: float, ranks: int, burners: int, flags: list[str]) -> list[list[float]]:
    """Of each rank its steps, its longest one in seconds, and connections made anew.  Raises AssertionError."""
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "train.py").write_text(SCRIPT)
        with burning(burners):
            done = subprocess.run(
                [*(sys.executable, "-m", "rabit.launch", "-np", str(ranks), *flags),
                 *(sys.executable, f"{name}/train.py", name, str(seconds))],
                env={**os.environ, "OMP_NUM_THREADS": "1"}, cwd=name,
                capture_output=True, text=True, timeout=3 * seconds + 120, check=False,
            )  # fmt: skip
        said = f"status {done.returncode}\n{done.stdout}{done.stderr}"
        assert done.returncode == 0, said
        found = [json.loads((Path(name) / f"{rank}.json").read_text()) for rank in range(ranks)]
        assert len({steps for steps, _, _ in found}) == 1, said
        return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--cores", type=int, default=2, help="that all share")
    parser.add_argument("--burners", type=int, default=8, help="programs that only compute, beside the ranks")
    parser.add_argument("--transport", default="auto", choices=("auto", "tcp"))
    given = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: given.cores])
    try:
        found = run(given.seconds, given.ranks, given.burners, ["--transport", given.transport])
    except AssertionError as error:
        print(f"somebody was taken for lost, or a sum was wrong: {error}")
        return 1
    steps, longest, restored = (max(each) for each in zip(*found, strict=True))
    print(f"no false alarm in {given.seconds:g} s of {given.ranks} ranks and {given.burners} burners on {given.cores} "
          f"cores: {steps:.0f} steps, the longest {longest:.2f} s, connections made anew {restored:.0f}")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
