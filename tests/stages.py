"""Runs the parts of `make test` or `make test-full` one after the other, saying how far it is and how long it takes.

    python tests/stages.py short|full

Each part is a target of the Makefile. A part that fails ends the run; what it printed stands above.
The estimates are seconds on 2 cores from nothing; the share of them that earlier parts took corrects the rest.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

# target, what it is, seconds on a machine with 2 cores
SHORT = [
    ("packages", "Python packages and the library", 130),
    ("check", "lint, types and the rules of the repository", 45),
    ("build-native", "building the native tests", 75),
    ("test-native", "native tests", 45),
    ("test-python-short", "Python tests, each under two seconds", 150),
]
FULL = [
    ("test-python-slow", "Python tests of two seconds and more", 480),
    ("test-sanitizers", "native tests under ASan, UBSan and TSan", 420),
    ("test-mxnet", "MXNet, in an environment of its own", 90),
    ("test-mpich", "MPICH, in an environment of its own", 90),
    ("fuzz", "Clang, thread-safety analysis and the fuzz targets", 240),
    ("wheel", "sdist and wheel for other machines", 200),
    ("docs", "the HTML pages", 60),
]


def minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def main() -> int:
    if len(sys.argv) != 2 or sys.argv[1] not in ("short", "full"):
        print(__doc__, file=sys.stderr)
        return 2
    stages = SHORT if sys.argv[1] == "short" else FULL
    start = time.monotonic()
    expected = 0
    for number, (target, what, estimate) in enumerate(stages, 1):
        spent = time.monotonic() - start
        pace = spent / expected if expected else 1.0
        left = sum(each[2] for each in stages[number - 1 :]) * pace
        print(
            f"== {number}/{len(stages)} {what}: about {minutes(estimate * pace)}, then "
            f"{minutes(left - estimate * pace)} more",
            flush=True,
        )
        code = subprocess.run([os.environ.get("MAKE", "make"), "--no-print-directory", target]).returncode
        if code != 0:
            print(f"== {what} failed; `make {target}` runs it alone", file=sys.stderr)
            return code
        expected += estimate
    print(f"== all {len(stages)} parts passed in {minutes(time.monotonic() - start)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
