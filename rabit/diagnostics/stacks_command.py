"""`rabitrun stacks`: what every rank of a job does now."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from rabit.command import run_command
from rabit.config.arguments import LineParser
from rabit.diagnostics.doctor.diagnosis import stacks_of
from rabit.diagnostics.doctor.picture import Picture
from rabit.diagnostics.look.client import look_at_job

__all__ = ["main"]


def main(words: Sequence[str] | None = None) -> int:
    """Prints the stacks of the job that the command line names; the exit status."""
    parser = LineParser(
        prog="rabitrun stacks",
        description="Prints the Python stack of the main thread of every rank of a job; equal stacks once. The line "
        "of your own code is first. It works while ranks wait in native code, and costs them nothing before.",
        epilog="Run it on the host of the job's rabitrun, as the same user.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "job", nargs="?", default="", help="process of its rabitrun; not needed for the only job"
    )
    parser.add_argument("--json", action="store_true", help="all threads of all ranks, as JSON")
    parsed = parser.parse_args(words)
    look = look_at_job(parsed.job, stacks=1, interval_s=0.0)
    if parsed.json:
        ranks = {
            rank: {
                "host": each.get("host"),
                "threads": (each.get("stacks") or [[]])[-1],
                "why": each.get("no_stacks"),
            }
            for rank, each in look["ranks"].items()
        }
        print(json.dumps({"job": look["job"], "ranks": ranks}))
    else:
        print("\n".join(stacks_of(Picture(look))))
    return 0


if __name__ == "__main__":
    sys.exit(run_command("rabitrun stacks", main))
