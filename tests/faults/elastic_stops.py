"""Ranks of elastic jobs that are stopped for a while, as by a debugger, a full memory or a moved virtual machine.

    python tests/faults/elastic_stops.py [--runs 40] [--seed 0] [--timeout 3]

Each job has three ranks, of which one is stopped (SIGSTOP) at a random moment, and continued (SIGCONT) 0.2 to 10 s
later.
Below the heartbeat timeout nobody may notice: no exception, no step with fewer ranks.  Above it the others must have
the exception within the timeout, and continue; the one that wakes must be told that it was given up, and leave.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support import seeds

SCRIPT = """
import json, os, pathlib, sys, time
import numpy as np
import rabit, rabit.elastic

folder = pathlib.Path(sys.argv[1])
me = int(os.environ["RABIT_RANK"])
rabit.init()
state = rabit.elastic.ObjectState(step=0, sizes=[])
exceptions = []

def goes_on():
    try:
        rabit.allreduce(np.ones(1000), name="gradient")
        return not rabit.any_rank((folder / "enough").exists())
    except rabit.RabitError:
        exceptions.append(time.clock_gettime(time.CLOCK_MONOTONIC))
        raise

@rabit.elastic.run
def train(state):
    while goes_on():
        state.step += 1
        state.sizes.append(rabit.size())
        state.commit()
        if state.step == 20:
            (folder / f"pid.{me}.new").write_text(str(os.getpid()))
            (folder / f"pid.{me}.new").rename(folder / f"pid.{me}")

def tell(what, document):
    (folder / f"new.{me}").write_text(json.dumps(document))
    (folder / f"new.{me}").rename(folder / f"{what}.{me}")

try:
    train(state)
except rabit.Aborted as error:
    tell("told", str(error))
    raise
tell("result", [sorted(set(state.sizes)), exceptions])
"""
LIMIT_S = 60.0


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    until = time.monotonic() + LIMIT_S
    while not path.exists():
        assert process.poll() is None, f"the job has ended before {path.name}: {process.communicate()}"
        assert time.monotonic() < until, f"there is no {path.name} after {LIMIT_S:g} s"
        time.sleep(0.005)


def run(dice: random.Random, timeout_s: float) -> tuple[float, list[float]]:
    """Seconds of the stop, and from it to the exceptions of the others.  Raises AssertionError."""
    is_long = dice.random() < 0.4
    stop_s = dice.uniform(timeout_s + 1.5, 10.0) if is_long else dice.uniform(0.2, timeout_s * 0.8)
    victim = dice.randrange(3)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.py").write_text(SCRIPT)
        process = subprocess.Popen(
            [*(sys.executable, "-m", "rabit.launch", "-np", "3", "--min-np", "2"),
             *("--transport", dice.choice(("auto", "tcp")), sys.executable, str(folder / "train.py"), name)],
            env={**os.environ, "OMP_NUM_THREADS": "1", "RABIT_HEARTBEAT_TIMEOUT": f"{timeout_s:g}s"},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        wait_for(folder / f"pid.{victim}", process)
        pid = int((folder / f"pid.{victim}").read_text())
        os.kill(pid, signal.SIGSTOP)
        began = time.clock_gettime(time.CLOCK_MONOTONIC)
        time.sleep(stop_s)
        os.kill(pid, signal.SIGCONT)
        if is_long:
            wait_for(folder / f"told.{victim}", process)
        (folder / "enough").touch()
        out, err = process.communicate(timeout=LIMIT_S)
        said = f"stopped rank {victim} for {stop_s:.2f} s: status {process.returncode}\n{out}{err}"
        assert process.returncode == 0, said
        results = {int(each.suffix[1:]): json.loads(each.read_text()) for each in folder.glob("result.*")}
        if not is_long:
            assert results == {rank: [[3], []] for rank in range(3)}, f"{results}: {said}"
            return stop_s, []
        told = json.loads((folder / f"told.{victim}").read_text())
        assert f"process {victim} was given up by the others" in told, told
        assert sorted(results) == [rank for rank in range(3) if rank != victim], f"{results}: {said}"
        assert all(sizes == [2, 3] for sizes, _ in results.values()), f"{results}: {said}"
        return stop_s, [exceptions[0] - began for _, exceptions in results.values()]


def main() -> int:
    parser = seeds.options(__doc__, runs=40)
    parser.add_argument("--timeout", type=float, default=3.0, help="RABIT_HEARTBEAT_TIMEOUT in seconds")
    given = parser.parse_args()
    noticed: list[float] = []
    short = 0

    def one(seed: int) -> None:
        nonlocal short
        _, times = run(random.Random(seed), given.timeout)
        assert all(each <= given.timeout for each in times), f"noticed after {times} s"
        short += not times
        noticed.extend(times)

    status = seeds.play(given, one)
    print(f"stops below the timeout of {given.timeout:g} s: {short}, noticed by nobody")
    if noticed:
        shown = f"{np.median(noticed):.2f} s in the median, {max(noticed):.2f} s at most, of {len(noticed)}"
        print(f"longer stops: exceptions of the others after {shown}")
    return status


if __name__ == "__main__":
    sys.exit(main())
