"""A job that is started again when a rank has failed: --max-restarts."""

from __future__ import annotations

import sys

from rabit.launch.job import Job
from rabit.launch.launchers.launcher import Launcher
from rabit.launch.outcome import Outcome

__all__ = ["run_with_restarts"]


def run_with_restarts(launcher: Launcher, job: Job) -> Outcome:
    """Runs the job to its end, after a failure again with all ranks, at most `job.max_restarts` times.  Blocks.

    A job that a signal to the launcher has ended, or that left to be resumed, stays ended.
    """
    outcome = launcher.run(job)
    for count in range(1, job.max_restarts + 1):
        if not outcome.has_failed:
            break
        print(
            f"rabitrun: starting the job again ({count} of {job.max_restarts})", file=sys.stderr, flush=True
        )
        outcome = launcher.run(job.again(count))
    return outcome
