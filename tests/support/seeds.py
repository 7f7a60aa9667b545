"""The loop of a campaign: a job for each seed, and how the ones that failed are played again."""

from __future__ import annotations

import argparse
import subprocess
import time
from collections.abc import Callable

SECONDS_BETWEEN_LINES = 15.0


def options(doc: str | None, runs: int) -> argparse.ArgumentParser:
    """A parser with --runs and --seed; the first line of `doc` says what the campaign is."""
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=runs, help="jobs to play")
    parser.add_argument("--seed", type=int, default=0, help="of the first job; the others count on")
    return parser


def play(
    given: argparse.Namespace,
    run: Callable[[int], object],
    *,
    jobs: str = "jobs ended as they must",
    about: Callable[[int], object] = lambda seed: f"seed {seed}",
) -> int:
    """Calls `run(seed)` once for each seed, continues after a failure, and returns the exit status.

    A failure is an AssertionError or what subprocess raises; `about(seed)` says what was played.  `jobs` ends the
    sum that is printed at the end, and at Ctrl-C, which ends the campaign.
    """
    began = said = time.monotonic()
    failed: list[int] = []
    played = 0
    try:
        for seed in range(given.seed, given.seed + given.runs):
            try:
                run(seed)
            except (AssertionError, subprocess.SubprocessError) as error:
                failed.append(seed)
                print(f"--seed {seed} --runs 1 has failed: {about(seed)}: {error}", flush=True)
            played += 1
            now = time.monotonic()
            if now - said > SECONDS_BETWEEN_LINES and played < given.runs:
                left = (now - began) / played * (given.runs - played)
                print(f"[{played}/{given.runs}, {len(failed)} failed, {left:.0f} s left]", flush=True)
                said = now
    except KeyboardInterrupt:
        print(f"stopped after {played} of {given.runs} jobs", flush=True)
        given.runs = played
    good = played - len(failed)
    print(f"{good} of {given.runs} {jobs}, in {time.monotonic() - began:.0f} s; failed seeds: {failed}")
    return 1 if failed or played == 0 else 0
