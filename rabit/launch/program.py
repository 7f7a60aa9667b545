"""Program: what every process of a job runs."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from pathlib import Path

from rabit.errors import InvalidArgument

__all__ = ["Program", "working_directory"]


@dataclass(frozen=True, kw_only=True)
class Program:
    """What every process of a job runs, and how, on each host.  Flags of rabitrun fill the fields of their names.

    directory: where it starts.  grace_s: between asking it to end and killing it.  bind_to: its processors; see
    rabit.launch.processors.  payload: a pickled call that ranks make in place of `command`.
    """

    command: tuple[str, ...]
    directory: str
    grace_s: float = 5.0
    bind_to: str = "none"
    payload: bytes | None = field(default=None, repr=False)


def working_directory() -> str:
    """Where ranks start: the directory of this process, by the name that its shell has for it."""
    try:
        here = Path.cwd()
    except FileNotFoundError as error:
        raise InvalidArgument(
            "the working directory has been removed, and the ranks are to start in it. Change to another one (cd)."
        ) from error
    name = os.environ.get("PWD", "")  # perhaps through a symbolic link, and perhaps of another process
    with contextlib.suppress(OSError):
        if name and here.samefile(name):
            return name
    return str(here)
