"""What a steady step costs the control plane: bytes, messages and the engine thread's CPU.

    python tests/bench/control_plane.py [--ranks 2,4,8] [--tensors 10,100,1000,10000] [--rate 10]

Every rank submits the same tensors of 4 bytes, `--rate` times a second, as training does.  Counted
from the engine's statistics after the first steps: control bytes and messages of the busiest rank
(rank 0, which talks to everybody) and of the busiest other rank; and the CPU time of the thread
"rabit-engine" as a share of one core, which negotiates, schedules and hands buckets to the lanes.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

WARM_STEPS = 5


def engine_cpu_seconds() -> float:
    """CPU time of this process's engine thread, at the resolution of the scheduler's clock."""
    for task in Path("/proc/self/task").iterdir():
        if (task / "comm").read_text().strip() == "rabit-engine":
            return int((task / "schedstat").read_text().split()[0]) * 1e-9
    raise SystemExit("no thread is called rabit-engine: is the native library current?")


def measure(tensors: int, steps: int, rate: float) -> None:
    import numpy as np

    import rabit

    rabit.init()
    engine = rabit.default_engine()
    values = np.ones(tensors, dtype=np.float32)
    requests = []
    for index in range(tensors):
        part = values[index : index + 1]
        view = rabit.TensorView(part.ctypes.data, part.shape, rabit.DType.FLOAT32, keepalive=part)
        requests.append(
            rabit.Request(
                kind=rabit.Kind.ALLREDUCE,
                name=f"gradient.{index}",
                op=rabit.Max,
                input=view,
                output=view,
                priority=tensors - index,
            )
        )
    batch = engine.prepare(requests)

    def step() -> None:
        for handle in batch.submit():
            handle.wait()

    for _ in range(WARM_STEPS):
        step()
    counted = ("bytes_sent", "bytes_received", "messages_sent", "messages_received")
    before = engine.statistics()["controller"]
    cpu, start = engine_cpu_seconds(), time.perf_counter()
    pause = threading.Event()  # nobody sets it: a sleep that ends on time
    for index in range(steps):
        step()
        pause.wait(max(0.0, start + (index + 1) / rate - time.perf_counter()))
    wall = time.perf_counter() - start
    cpu = engine_cpu_seconds() - cpu
    after = engine.statistics()["controller"]
    mine = [(after[key] - before[key]) / steps for key in counted] + [100 * cpu / wall]
    everyone = rabit.allgather(np.array([mine]), name="figures")
    if rabit.rank() == 0:
        report(tensors, wall / steps, everyone)
    rabit.shutdown()


def report(tensors: int, seconds: float, everyone) -> None:
    root, others = everyone[0], everyone[1:].max(axis=0)
    print(
        f"{len(everyone):5} ranks {tensors:6} tensors {1 / seconds:5.1f} steps/s   "
        f"a rank: {others[0]:7.0f} B out {others[1]:7.0f} B in, "
        f"{others[2]:.1f} + {others[3]:.1f} messages, engine {others[4]:5.2f} %   "
        f"rank 0: {root[0]:7.0f} B out {root[1]:7.0f} B in, "
        f"{root[2]:.1f} + {root[3]:.1f} messages, engine {root[4]:5.2f} %",
        flush=True,
    )


def integers(text: str) -> list[int]:
    return [int(each) for each in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=integers, default=[2, 4, 8], help="default 2,4,8")
    parser.add_argument(
        "--tensors", type=integers, default=[10, 100, 1000, 10000], help="default 10,100,1000,10000"
    )
    parser.add_argument("--steps", type=int, default=30, help="counted (default 30)")
    parser.add_argument("--rate", type=float, default=10, help="steps a second (default 10)")
    args = parser.parse_args()
    if "RABIT_RANK" in os.environ:
        measure(args.tensors[0], args.steps, args.rate)
        return
    print("steady state, means per step")
    here = [sys.executable, str(Path(__file__).resolve())]
    same = ["--steps", str(args.steps), "--rate", str(args.rate)]
    for ranks in args.ranks:
        for tensors in args.tensors:
            launch = [sys.executable, "-m", "rabit.launch", "-np", str(ranks), "--"]
            subprocess.run([*launch, *here, "--tensors", str(tensors), *same], check=True)


if __name__ == "__main__":
    main()
