"""What the record costs: calls of 1 KiB between two ranks, with and without it, in turns; medians of pairs.

    python tests/bench record_cost [--pairs 20] [--calls 3000]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile

RANK = """
import sys, time
import numpy as np
import rabit

calls = int(sys.argv[1])
rabit.init()
x = np.ones(256, np.float32)
for _ in range(300):
    rabit.allreduce_(x, name="grad", op=rabit.Max)
begin = time.perf_counter()
for _ in range(calls):
    rabit.allreduce_(x, name="grad", op=rabit.Max)
    rabit.mark_step()
took = time.perf_counter() - begin
if rabit.rank() == 0:
    print(took / calls * 1e6)
"""


def microseconds(calls: int, record: str) -> float:
    """Of a call and a mark of a step."""
    command = [sys.executable, "-m", "rabit.launch", "-np", "2", sys.executable, "-c", RANK, str(calls)]
    done = subprocess.run(
        command,
        env={**os.environ, "RABIT_RECORD": record},
        cwd=tempfile.gettempdir(),
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    return float(done.stdout.split()[-1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--calls", type=int, default=3000)
    parsed = parser.parse_args()
    pairs = []
    for number in range(parsed.pairs):
        order = ("1", "0") if number % 2 else ("0", "1")
        found = {record: microseconds(parsed.calls, record) for record in order}
        pairs.append((found["0"], found["1"]))
        print(f"without {found['0']:8.2f} us  with {found['1']:8.2f} us", flush=True)
    without, with_record = (statistics.median(each) for each in zip(*pairs, strict=True))
    ratio = statistics.median(b / a for a, b in pairs)
    print(f"median: without {without:.2f} us, with {with_record:.2f} us; pairs: {ratio - 1:+.1%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
