"""When the scheduler of the cluster will end this job."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Mapping

from rabit.errors import InvalidArgument

__all__ = ["end_time", "remaining_seconds"]

_ANSWER_S = 30.0
_TIME = re.compile(r"(?:(\d+)-)?(?:(?:(\d+):)?(\d+):)?(\d+)")


def end_time(environ: Mapping[str, str]) -> float:
    """Seconds since the epoch at which this job of Slurm reaches its limit; infinity: it has none.

    Blocks while Slurm's squeue answers.  Raises InvalidArgument where no scheduler tells.
    """
    given = environ.get("SLURM_JOB_END_TIME", "")
    if given.isdigit():
        return float(given)
    job = environ.get("SLURM_JOB_ID", "")
    if not job:
        raise InvalidArgument(
            "RABIT_STOP_BEFORE is set, and this is not a job of Slurm, whose time limit is known. Unset it, and let "
            "the scheduler send a signal of RABIT_STOP_SIGNALS before it ends the job."
        )
    try:
        done = subprocess.run(
            ["squeue", "-h", "-j", job, "-o", "%L"],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_ANSWER_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _unknown(job, str(error)) from error
    left = remaining_seconds(done.stdout.strip())
    if left is None:
        raise _unknown(job, (done.stderr or done.stdout).strip() or "it said nothing")
    return time.time() + left


def remaining_seconds(text: str) -> float | None:
    """Of Slurm's "1-02:03:04", "02:03" or "UNLIMITED"; None: another form."""
    if text in ("UNLIMITED", "NOT_SET"):
        return float("inf")
    match = _TIME.fullmatch(text)
    if match is None:
        return 0.0 if text == "INVALID" else None  # The limit has passed.
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def _unknown(job: str, why: str) -> InvalidArgument:
    return InvalidArgument(
        f"RABIT_STOP_BEFORE is set, and squeue does not tell the time limit of job {job}: {why}. Unset it, or add "
        "--signal=B:USR1@120 to the job."
    )
