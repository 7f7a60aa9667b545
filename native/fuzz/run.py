"""Runs every fuzz target of a build for some seconds, two at a time, and says what each has tried.

    python native/fuzz/run.py BUILD SECONDS

The corpus grows in BUILD/corpus from run to run; a finding is left beside the targets, as libFuzzer names it.
"""

from __future__ import annotations

import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import corpus

NAMES = sorted(path.stem for path in Path(__file__).parent.glob("fuzz_*.cc"))


def run(build: Path, name: str, seconds: int) -> bool:
    command = [
        *(str(build / name), f"-max_total_time={seconds}", "-timeout=10", "-rss_limit_mb=2048"),
        *("-verbosity=0", "-print_final_stats=1", f"-artifact_prefix={build}/{name}."),
        str(build / "corpus" / name),
    ]
    # libFuzzer ends by itself; a target that hangs is ended by -timeout, and what hangs beyond it here.
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 120)
    if done.returncode != 0:
        print(f"{name}: a finding\n{done.stderr[-8000:]}", flush=True)
        return False
    tried = re.search(r"number_of_executed_units:\s*(\d+)", done.stderr)
    print(f"{name}: {int(tried[1]) if tried else 0:,} inputs, no finding", flush=True)
    return True


def main() -> int:
    build, seconds = Path(sys.argv[1]).resolve(), int(sys.argv[2])
    corpus.write(build / "corpus")
    print(f"{len(NAMES)} fuzz targets, {seconds} s each, two at a time", flush=True)
    with ThreadPoolExecutor(2) as pool:
        passed = list(pool.map(lambda name: run(build, name, seconds), NAMES))
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
