"""`rabitrun doctor`: why a job hangs, is slow or has failed; and before a job, what its hosts lack."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from rabit.command import run_command
from rabit.config.arguments import LineParser
from rabit.diagnostics.doctor.diagnosis import Diagnosis, diagnose, report_lines
from rabit.diagnostics.look.client import look_at_job
from rabit.diagnostics.look.look import look_at_folder
from rabit.errors import RabitError
from rabit.record.reader import find_records

__all__ = ["main"]

_FOUND, _COULD_NOT_LOOK = 1, 2
_LOOKS = 8
_SLOW_S, _HUNG_S = 2.5, 0.6


def main(words: Sequence[str] | None = None) -> int:
    """Prints what is wrong; 0: nothing is found, 1: something is, 2: it could not look."""
    parsed = _parser().parse_args(words)
    try:
        if parsed.hosts or parsed.hostfile:
            from rabit.launch.preflight import preflight

            diagnosis = preflight(parsed)
        else:
            diagnosis = _diagnosis(parsed.what, parsed.seconds)
    except RabitError as error:
        if parsed.json:
            print(
                json.dumps(
                    {"causes": [], "phase": "unknown", "healthy": False, "problem": str(error)}
                )
            )
        print(f"rabitrun doctor: {error}", file=sys.stderr)
        return _COULD_NOT_LOOK
    if parsed.json:
        print(json.dumps(diagnosis.document()))
    else:
        print("\n".join(report_lines(diagnosis)))
    return _FOUND if diagnosis.causes else 0


def _parser() -> LineParser:
    parser = LineParser(
        prog="rabitrun doctor",
        description="Says why a job hangs, is slow or has failed: the rank, its line, the cause with its evidence, and "
        "what to do. Without an argument it looks at the one job of this user on this host.",
        epilog="Exit status: 0 nothing found, 1 something found, 2 it could not look.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "what",
        nargs="*",
        metavar="JOB, FOLDER or words",
        help="process of a rabitrun that runs; a folder of records; and what you see: 'loss is nan since step 300'",
    )
    parser.add_argument(
        "-H", "--hosts", default="", help="before a job: the hosts to check, as for rabitrun"
    )
    parser.add_argument("--hostfile", default="", help="before a job: a file that names them")
    parser.add_argument("--ssh-port", type=int, default=None, help="for -H")
    parser.add_argument(
        "-i", "--ssh-identity-file", type=Path, default=None, help="for -H: private key for ssh"
    )
    parser.add_argument(
        "--ssh-option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="for -H: as for ssh -o",
    )
    parser.add_argument(
        "--ssh-always", action="store_true", help="for -H: ssh for this machine as well"
    )
    parser.add_argument("--remote-python", default="", help="for -H: the Python of the other hosts")
    parser.add_argument(
        "--seconds",
        type=float,
        default=_SLOW_S,
        help="how long to look at a job that continues (2.5)",
    )
    parser.add_argument(
        "--json", action="store_true", help="one JSON document with a stable schema"
    )
    return parser


def _diagnosis(what: Sequence[str], seconds: float) -> Diagnosis:
    first = what[0] if what else ""
    if first and (Path(first).exists() or "/" in first):
        return diagnose(
            {**look_at_folder(find_records(Path(first))), "is_after": True}, " ".join(what[1:])
        )
    job, said = (first, what[1:]) if first.isdigit() else ("", what)
    look = look_at_job(job, 2, _HUNG_S)
    found = diagnose(look, " ".join(said))
    # A job that continues shows what it does in many looks only.
    if found.picture.phase == "running":
        look = look_at_job(str(look["job"]), max(2, int(_LOOKS * seconds / _SLOW_S)), seconds)
        found = diagnose(look, " ".join(said))
    return found


if __name__ == "__main__":
    sys.exit(run_command("rabitrun doctor", main))
