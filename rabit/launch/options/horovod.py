"""Flags of horovodrun that rabitrun has under another name, or not at all.

Three kinds: those with a twin become the setting; those that change nothing here are accepted
with one notice; those whose meaning would be lost are refused, with what to do instead.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

from rabit.errors import InvalidArgument

__all__ = ["add_to", "settings_from"]


@dataclass(frozen=True)
class _Twin:
    flag: str
    setting: str
    convert: Callable[[str], str]
    metavar: str = "VALUE"


def _megabytes(text: str) -> str:
    return text + "M"


def _seconds(text: str) -> str:
    return text + "s"


def _same(text: str) -> str:
    return text


_TWINS = (
    _Twin("--fusion-threshold-mb", "fusion_bytes", _megabytes, "MB"),
    _Twin("--stall-check-warning-time-seconds", "stall_warning", _seconds, "SECONDS"),
    _Twin("--stall-check-shutdown-time-seconds", "stall_abort", _seconds, "SECONDS"),
    _Twin("--gloo-timeout-seconds", "connect_timeout", _seconds, "SECONDS"),
    _Twin("--autotune-log-file", "autotune_log", _same, "FILE"),
    _Twin("--autotune-bayes-opt-max-samples", "autotune_samples", _same, "N"),
    _Twin("--timeline-filename", "timeline", _same, "FILE"),
    _Twin("--network-interface", "network_interfaces", _same, "NAME"),
)
# Flag without a value -> (setting, text of its value).
_IMPLIED = {
    "--hierarchical-allreduce": ("allreduce_algorithm", "hierarchical"),
    "--no-stall-check": ("stall_warning", "0"),
}
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
_NO_ELASTIC = "jobs have a fixed number of ranks: start again with -np after a failure"
_REFUSED: dict[str, tuple[int, str]] = {
    "--min-np": (1, _NO_ELASTIC),
    "--min-num-proc": (1, _NO_ELASTIC),
    "--max-np": (1, _NO_ELASTIC),
    "--max-num-proc": (1, _NO_ELASTIC),
    "--slots-per-host": (1, _NO_ELASTIC),
    "--elastic-timeout": (1, _NO_ELASTIC),
    "--reset-limit": (1, _NO_ELASTIC),
    "--blacklist-cooldown-range": (2, _NO_ELASTIC),
    "--host-discovery-script": (1, _NO_ELASTIC),
    "--mpi": (0, "start the program with mpirun itself: rabit.init() reads its variables"),
    "--mpi-args": (1, "start the program with mpirun itself: rabit.init() reads its variables"),
    "--jsrun": (0, "start the program with mpirun itself: rabit.init() reads its variables"),
    "--tcp": (0, "use --transport tcp"),
    "--binding-args": (1, "use --bind-to numa or core"),
    "--thread-affinity": (1, "use --bind-to numa or core"),
}


def add_to(group: argparse._ArgumentGroup) -> None:
    """Adds every flag.  Only those with a twin are shown by --help."""
    for twin in _TWINS:
        repeats = "append" if twin.setting == "network_interfaces" else "store"
        group.add_argument(
            twin.flag, dest="horovod" + twin.flag, metavar=twin.metavar, action=repeats,
            help=f"as --{twin.setting.replace('_', '-')}",
        )  # fmt: skip
    for flag, (setting, value) in _IMPLIED.items():
        group.add_argument(
            flag, dest="horovod" + flag, action="store_true",
            help=f"as --{setting.replace('_', '-')} {value}",
        )  # fmt: skip
    for flag, (count, _) in {**_WITHOUT_EFFECT, **_REFUSED}.items():
        if count:
            group.add_argument(
                flag, dest="horovod" + flag, nargs=count, help=argparse.SUPPRESS, default=None
            )
        else:
            group.add_argument(
                flag, dest="horovod" + flag, action="store_true", help=argparse.SUPPRESS
            )


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
    for twin in _TWINS:
        value = given["horovod" + twin.flag]
        if value is not None:
            text = ",".join(value) if isinstance(value, list) else value
            found[twin.setting] = (twin.convert(text), twin.flag)
    for flag, (setting, text) in _IMPLIED.items():
        if given["horovod" + flag]:
            found[setting] = (text, flag)
    ignored = [
        f"{flag} ({why})" for flag, (_, why) in _WITHOUT_EFFECT.items() if given["horovod" + flag]
    ]
    return found, ["without effect: " + ", ".join(ignored)] if ignored else []
