"""What rabitrun makes of the variables with which the processes of a BytePS job are told their places.

Those that are settings are in rabit.config.byteps.
"""

from __future__ import annotations

from collections.abc import Mapping

from rabit.errors import InvalidArgument
from rabit.launch.options.environment import base_environ

__all__ = ["check_role", "worker_count"]


def check_role(environ: Mapping[str, str]) -> None:
    """Raises InvalidArgument where `environ` wants another process than worker 0, or what is not there."""
    role = environ.get("DMLC_ROLE", "worker")
    worker = environ.get("DMLC_WORKER_ID", "0")
    if role != "worker" or worker != "0":
        which = f"worker {worker}" if role == "worker" else f"the {role}"
        raise InvalidArgument(
            f"DMLC_ROLE={role} and DMLC_WORKER_ID={worker} ask for {which} of a BytePS job, and rabitrun starts "
            "all processes of a job itself, on all hosts. Run it once, for example 'rabitrun -np 8 -H "
            "gpu1:4,gpu2:4 -s 2 --server-hosts cpu1,cpu2 python train.py', and unset these variables."
        )


def worker_count(environ: Mapping[str, str]) -> int | None:
    """The number of ranks that DMLC_NUM_WORKER asks for; None: it is not set.

    Raises InvalidArgument if it is not a number.
    """
    text = base_environ(environ).get("DMLC_NUM_WORKER", "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdigit()):
        raise InvalidArgument(
            f"DMLC_NUM_WORKER is {text!r}: expected a number. Correct or unset it, and give -np."
        )
    return int(text)
