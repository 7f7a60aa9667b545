"""rabitrun submit: prints the batch script of a job of Slurm that saves, is requeued and continues."""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from rabit.command import run_command
from rabit.config.arguments import LineParser
from rabit.errors import InvalidArgument
from rabit.types import RESUMABLE

__all__ = ["batch_script", "main"]

_TIME = re.compile(r"\d+(:\d+){0,2}|\d+-\d+(:\d+){0,2}")


def main(words: Sequence[str]) -> int:
    """The exit status of `rabitrun submit WORDS`."""
    return run_command("rabitrun submit", lambda: _main(_parser().parse_args(words)))


def _main(parsed: argparse.Namespace) -> int:
    script = batch_script(parsed)
    if parsed.output is None:
        print(script, end="")
        return 0
    try:
        parsed.output.write_text(script)
    except OSError as error:
        raise InvalidArgument(
            f"the script {parsed.output} cannot be written: {error.strerror}. Choose another name."
        ) from error
    print(f"wrote {parsed.output}. Run: sbatch {shlex.quote(str(parsed.output))}", file=sys.stderr)
    return 0


def batch_script(parsed: argparse.Namespace) -> str:
    """The text of the script.  Raises InvalidArgument for numbers and times that Slurm would not take."""
    if parsed.nodes < 1 or parsed.ranks_per_node < 1:
        raise InvalidArgument(
            f"--nodes is {parsed.nodes} and --ranks-per-node {parsed.ranks_per_node}: expected 1 or more."
        )
    if not _TIME.fullmatch(parsed.time):
        raise InvalidArgument(f"--time is {parsed.time!r}: expected minutes, h:mm:ss or d-hh:mm:ss.")
    command = parsed.command[1:] if parsed.command[:1] == ["--"] else parsed.command
    if not command:
        raise InvalidArgument("there is no command. Give it last: rabitrun submit --nodes 2 python train.py")
    flags = [
        f"--job-name={parsed.job_name}",
        f"--nodes={parsed.nodes}",
        f"--ntasks-per-node={parsed.ranks_per_node}",
        f"--time={parsed.time}",
        f"--signal=B:USR1@{parsed.stop_before}",
        "--requeue",
        "--open-mode=append",
        *parsed.sbatch,
    ]
    lines = ["#!/bin/bash", *(f"#SBATCH {flag}" for flag in flags)]
    lines.append(_BODY.format(python=shlex.quote(parsed.python), command=shlex.join(command), resumable=RESUMABLE))
    return "\n".join(lines)


# A signal ends the wait of the shell; the last one gives the status of the job, also when that has ended before.
_BODY = """
# Slurm sends USR1 to this shell before the time limit: should_stop() is then true on all ranks.
{python} -m rabit.launch --launcher srun {command} &
job=$!
trap 'kill -USR1 $job' USR1
trap 'kill -TERM $job' TERM
while kill -0 $job 2>/dev/null; do wait $job; done
wait $job
status=$?
# {resumable}: the ranks have saved and want to continue.
if [ $status -eq {resumable} ]; then
  exec scontrol requeue "$SLURM_JOB_ID"
fi
exit $status
"""


def _parser() -> argparse.ArgumentParser:
    parser = LineParser(
        prog="rabitrun submit",
        description="Prints the batch script of a job of Slurm, which stops by should_stop() before its time limit, is "
        "requeued when it ends with status 75, and needs no ssh.",
        allow_abbrev=False,
    )
    parser.add_argument("-N", "--nodes", type=int, default=1, help="nodes (1)")
    parser.add_argument("--ranks-per-node", type=int, default=1, metavar="N", help="ranks on each node (1)")
    parser.add_argument("-t", "--time", default="60", help="limit, as minutes, h:mm:ss or d-hh:mm:ss (60)")
    parser.add_argument("-J", "--job-name", default="rabit", help="name of the job")
    parser.add_argument(
        "--stop-before", type=int, default=120, metavar="SECONDS",
        help="how long before the limit the ranks are asked to stop (120)",
    )  # fmt: skip
    parser.add_argument(
        "--sbatch", action="append", default=[], metavar="FLAG",
        help="one more flag of sbatch, such as --sbatch=--partition=long (repeatable)",
    )  # fmt: skip
    parser.add_argument("--python", default=sys.executable, help="the interpreter on the nodes (this one)")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write the script there")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="what each rank runs")
    return parser
