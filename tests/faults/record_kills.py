"""Kills processes at random moments and reads their records.

    python tests/faults/record_kills.py [--kills 1000] [--seed 0]

Every process makes quick calls, in which name, elements and kind depend on each other, and marks steps; it is killed by
SIGKILL some microseconds to milliseconds after its third step.  A record that cannot be read, an entry that mixes two
operations, or times that go back count as failures.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

import numpy as np

import rabit
from rabit.errors import InvalidArgument
from rabit.record.reader import Record, read_record


def work(folder: str, ready: int) -> None:
    """What a process does until it is killed."""
    os.environ["RABIT_RECORD"] = folder
    rabit.init()
    tensors = [np.ones(100 + number, np.float32) for number in range(7)]
    step = 0
    while True:
        step += 1
        number = step % 7
        rabit.allreduce_(tensors[number], name=f"tensor{number}")
        rabit.allreduce(tensors[number], name=f"blocking.{step}")
        rabit.mark_step()
        rabit.mark(f"mark {number}", number)
        if step == 3:
            os.write(ready, b"1")


def faults_of(record: Record) -> list[str]:
    """What cannot be true of such a process."""
    found = []
    for operation in record.operations:
        stem, _, digits = operation.name.replace("tensor", "tensor.").partition(".")
        number = int(digits or 0) % 7
        if (
            stem not in ("tensor", "blocking")
            or operation.elements != 100 + number
            or operation.kind != "allreduce"
        ):
            found.append(f"an operation of two: {operation}")
        times = [
            operation.submitted_ns,
            operation.agreed_ns,
            operation.started_ns,
            operation.finished_ns,
        ]
        known = [moment for moment in times if moment]
        if known != sorted(known):
            found.append(f"times that go back: {operation}")
    for mark in record.marks:
        number = int(mark.text.removeprefix("mark ")) if mark.text.startswith("mark ") else -1
        if (
            mark.text != "step"
            and not mark.text.startswith("gc ")
            and mark.duration_ns != number * 1_000_000_000
        ):
            found.append(f"a mark of two: {mark}")
    if record.header.get("rank") != 0 or record.counters["steps"] < len(record.marks) // 2 - 1:
        found.append("a header or counters of something else")
    return found


def killed_at(after_s: float, folder: Path) -> tuple[list[str], int]:
    """The faults of the record of a process killed so long after its init(), and how many operations it holds."""
    ends = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(ends[0])
            work(str(folder), ends[1])
        except Exception:
            traceback.print_exc()
        os._exit(1)
    os.close(ends[1])
    os.read(ends[0], 1)
    os.close(ends[0])
    time.sleep(after_s)
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    if not os.WIFSIGNALED(status):
        return ["the process ended by itself"], 0
    try:
        record = read_record(folder / "rank-0.rabit")
    except InvalidArgument as error:
        return [str(error)], 0
    return faults_of(record), len(record.operations)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parsed = parser.parse_args()
    dice = random.Random(parsed.seed)
    faults: Counter[str] = Counter()
    operations = 0
    with tempfile.TemporaryDirectory(prefix="record-kills-") as folder:
        for _ in range(parsed.kills):
            found, count = killed_at(dice.expovariate(1 / 0.01), Path(folder))
            operations += count
            faults.update(found[:1])
    print(
        f"{parsed.kills} kills, {sum(faults.values())} records with faults, {operations} operations read"
    )
    for text, count in faults.most_common(5):
        print(f"  {count}: {text}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
