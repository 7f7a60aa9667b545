"""The long form of test_checkpoint_faults.py: every crash point of jobs of one to three ranks under many
fates of what was not synced, every failing operation, and damage by the ten thousand.

    python tests/faults/checkpoint_campaign.py [--only damages] [--seeds 20] [--damages 20000] [--seed 0]

A failure prints the case; the same case fails again.
"""

from __future__ import annotations

import argparse
import errno
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support import checkpoint_processes
from support.checkpoint_faults import check_after, crash_points, damages_detected, die, fail

from rabit.checkpoint import commit


def crashes(seeds: int) -> int:
    count = 0
    for size in (1, 2, 3):
        for rank, number in crash_points(size):
            for survives, seed in [("all", 0), ("none", 0), *(("some", each) for each in range(seeds))]:
                case = f"size {size}, rank {rank}, operation {number}, {survives} survives, seed {seed}"
                try:
                    check_after(die(size, rank, number), survives, seed, 1 + (number + seed) % 3)
                except BaseException:
                    print(f"failed: {case}", flush=True)
                    raise
                count += 1
    return count


def failures() -> int:
    count = 0
    for size in (1, 2, 3):
        for rank in range(size):
            for error in (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS):
                for number in range(1, fail(size, rank, 0, error) + 1):
                    try:
                        fail(size, rank, number, error)
                    except BaseException:
                        print(f"failed: size {size}, rank {rank}, operation {number}, errno {error}")
                        raise
                    count += 1
    return count


def processes() -> int:
    """Real ones, on a real disk; returns how many were killed."""
    killed = 0
    for rank, number in checkpoint_processes.points():
        try:
            killed += checkpoint_processes.lose_at(rank, number)
            for error in (errno.ENOSPC, errno.EIO):
                checkpoint_processes.fail_at(rank, number, error)
        except BaseException:
            print(f"failed: process of rank {rank}, operation {number}", flush=True)
            raise
    return killed


def main() -> int:
    parts = ("crashes", "failures", "processes", "damages")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=parts, default="", help="one part of the campaign")
    parser.add_argument("--seeds", type=int, default=20, help="fates of each crash point")
    parser.add_argument("--damages", type=int, default=20_000, help="changes of files")
    parser.add_argument("--seed", type=int, default=0, help="of the damages")
    given = parser.parse_args()
    commit._WRITE_BYTES = 128
    for part in [given.only] if given.only else parts:
        began = time.monotonic()
        if part == "crashes":
            said = f"crashes: {crashes(given.seeds)}, none lost a generation"
        elif part == "failures":
            said = f"failing operations: {failures()}, all told and survived"
        elif part == "processes":
            said = f"processes: killed at {processes()} points, and disks failed there; none lost a generation"
        else:
            found = damages_detected(given.damages, given.seed)
            said = f"damages: {found} of {given.damages} changed a file, all detected"
        print(f"{said}; {time.monotonic() - began:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
