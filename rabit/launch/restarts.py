"""A job that is started again when a rank has failed: --max-restarts."""

from __future__ import annotations

import dataclasses
import sys

from rabit.launch.launchers.rabitrun import Request, launch
from rabit.launch.outcome import Outcome

__all__ = ["launch_again"]


def launch_again(request: Request, most: int) -> Outcome:
    """Runs the job to its end, after a failure anew with all ranks, at most `most` times.  Blocks.

    A job that a signal to the launcher has ended, or that left to be resumed, stays ended.
    """
    outcome = launch(request)
    for count in range(1, most + 1):
        if not outcome.has_failed:
            break
        print(f"rabitrun: starting the job again ({count} of {most})", file=sys.stderr, flush=True)
        tuning = {**request.tuning, "RABIT_RESTART": str(count)}
        # In a folder of its own: why the attempt before has failed is in its files.
        folder = request.output_folder and request.output_folder / f"restart.{count}"
        outcome = launch(dataclasses.replace(request, tuning=tuning, output_folder=folder))
    return outcome
