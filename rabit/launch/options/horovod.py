"""Flags of horovodrun, and older ones of rabitrun, that rabitrun has under another name, or not at all.

Three kinds: those with a twin become the setting; those that change nothing here are accepted
with one notice; those whose meaning would be lost are refused, with what to do instead.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rabit.config import older
from rabit.config.arguments import duration_up_to
from rabit.config.horovod import TWINS
from rabit.errors import InvalidArgument

__all__ = ["add_to", "settings_from"]


# Flag -> (number of values, why nothing happens).
_WITHOUT_EFFECT: dict[str, tuple[int, str]] = {
    "--disable-cache": (0, "rabitrun caches no checks"),
    "--cycle-time-ms": (1, "rabit wakes on work and has no cycle"),
    "--no-hierarchical-allreduce": (0, "the algorithm is chosen by cost"),
    "--hierarchical-allgather": (0, "allgather has one algorithm"),
    "--no-hierarchical-allgather": (0, "allgather has one algorithm"),
    "--torus-allreduce": (0, "there is no torus algorithm"),
    "--no-torus-allreduce": (0, "there is no torus algorithm"),
    "--autotune-gaussian-process-noise": (1, "the noise is estimated from the measurements"),
    "--stall-check": (0, "the stall check is on"),
    "--mpi-threads-disable": (0, "MPI is not initialised for the job"),
    "--no-mpi-threads-disable": (0, "MPI is not initialised for the job"),
    "--num-nccl-streams": (1, "--lanes sets how many operations run at once"),
    "--log-with-timestamp": (0, "messages carry no time; see --timestamps"),
    "--log-without-timestamp": (0, "messages carry no time"),
    "--log-hide-timestamp": (0, "messages carry no time"),
    "--no-log-hide-timestamp": (0, "messages carry no time; see --timestamps"),
    "--gloo": (0, "there is one controller"),
}
_WITHOUT_EFFECT |= {
    "--reset-limit": (1, "a job that resets again and again without a commit ends"),
}
_REFUSED: dict[str, tuple[int, str]] = {
    "--jsrun": (0, "start the program with jsrun itself: rabit.init() reads the variables of MPI"),
    "--thread-affinity": (1, "use --bind-to numa or core"),
}


def add_to(group: argparse._ArgumentGroup) -> None:
    """Adds every flag.  Only those with a twin are shown by --help."""
    for twin in older.TWINS:
        how: dict[str, Any] = {"action": "store_true"} if twin.implied else {"metavar": "VALUE"}
        group.add_argument(twin.flag, dest="horovod" + twin.flag, help=argparse.SUPPRESS, **how)
    added = set()
    for twin in TWINS:
        if not twin.flag or twin.flag in added:
            continue
        added.add(twin.flag)
        name = twin.setting.replace("_", "-")
        if twin.implied:
            group.add_argument(
                twin.flag, dest="horovod" + twin.flag, action="store_true",
                help=f"as --{name} {twin.implied}",
            )  # fmt: skip
            continue
        repeats = "append" if twin.setting == "network_interfaces" else "store"
        group.add_argument(
            twin.flag, dest="horovod" + twin.flag, metavar="MB" if twin.unit == "M" else "VALUE",
            action=repeats, help=f"as --{name}",
        )  # fmt: skip
    _add_bounds(group)
    _add_mpi(group)
    for flag, (count, _) in {**_WITHOUT_EFFECT, **_REFUSED}.items():
        if count:
            group.add_argument(
                flag, dest="horovod" + flag, nargs=count, help=argparse.SUPPRESS, default=None
            )
        else:
            group.add_argument(
                flag, dest="horovod" + flag, action="store_true", help=argparse.SUPPRESS
            )


def _add_bounds(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--min-np", "--min-num-proc", type=int, dest="min_np", metavar="N",
        help="an elastic job: continue when ranks are lost, with at least N; for programs that use "
        "rabit.elastic",
    )  # fmt: skip
    group.add_argument(
        "--max-np", "--max-num-proc", type=int, dest="max_np", metavar="N",
        help="the most ranks; with --min-np lost ones are replaced, and the job grows up to N where "
        "hosts have slots",
    )  # fmt: skip
    group.add_argument(
        "--host-discovery-script", type=Path, metavar="FILE",
        help="program that prints the hosts, one in each line as 'host:slots'; with --min-np it runs "
        "again and again, and the job follows",
    )  # fmt: skip
    group.add_argument(
        "--host-discovery-interval", type=duration_up_to(86400.0, "24 hours"), default=1.0,
        metavar="TIME",
        help="how often that program, or else --hostfile, is looked at while an elastic job runs "
        "(default 1s)",
    )  # fmt: skip
    group.add_argument(
        "--blacklist-cooldown-range", nargs=2, type=float, metavar=("MIN", "MAX"),
        help="for how many seconds a host is set aside where processes of an elastic job fail again and "
        "again: MIN, doubled each time up to MAX (default 10 300)",
    )  # fmt: skip
    group.add_argument(
        "--slots-per-host", "--slots", type=int, metavar="N",
        help="slots of a host for which that program names none",
    )  # fmt: skip


def _add_mpi(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--mpi", action="store_const", const="mpi", dest="launcher", help="as --launcher mpi"
    )
    group.add_argument(
        "--mpi-args", metavar="ARGUMENTS", default="",
        help="further arguments of mpiexec, with --launcher mpi: --mpi-args='-x NAME'",
    )  # fmt: skip
    group.add_argument(
        "--binding-args", metavar="ARGUMENTS", default="",
        help="the same, about processors, instead of --bind-to",
    )  # fmt: skip


def settings_from(arguments: argparse.Namespace) -> tuple[dict[str, tuple[str, str]], list[str]]:
    """Setting -> (text of its value, flag) for the flags that were given, and notices.

    Raises InvalidArgument for a flag whose meaning would be lost.
    """
    given = vars(arguments)
    for flag, (_, instead) in _REFUSED.items():
        if given["horovod" + flag]:
            raise InvalidArgument(
                f"{flag} of horovodrun has no meaning here: {instead}. Remove the flag."
            )
    found: dict[str, tuple[str, str]] = {}
    renamed = []
    for twin in (*older.TWINS, *TWINS):
        value = given["horovod" + twin.flag] if twin.flag else None
        if twin in older.TWINS and value and value != twin.idle:
            renamed.append(f"{twin.flag} is --{twin.setting} {twin.implied or value}")
        if twin.implied and value:
            found[twin.setting] = (twin.implied, twin.flag)
        elif not twin.implied and value not in (None, twin.idle):
            text = ",".join(value) if isinstance(value, list) else value
            found[twin.setting] = (text + twin.unit, twin.flag)
    ignored = [
        f"{flag} ({why})" for flag, (_, why) in _WITHOUT_EFFECT.items() if given["horovod" + flag]
    ]
    notices = ["without effect: " + ", ".join(ignored)] if ignored else []
    return found, notices + (["older flags: " + ", ".join(renamed)] if renamed else [])
