"""Of how many ranks a job starts, and where, as Horovod's flags of elastic jobs have it."""

from __future__ import annotations

import errno
import os
import re
import shlex
import subprocess
from pathlib import Path

from rabit.errors import InvalidArgument
from rabit.launch.hosts import Host, parse_host_lines

__all__ = ["bounded_size", "discovered_hosts"]

_SCRIPT_TIMEOUT_S = 60


def bounded_size(size: int | None, slots: int | None, least: int | None, most: int | None) -> int:
    """The number of ranks: `size`, else as many as there are slots, at most `most`.

    slots: of all hosts, or None if no hosts are given.
    Raises InvalidArgument if that is unknown, or not between `least` and `most`.
    """
    if size is None and slots is None:
        raise InvalidArgument(
            "the number of ranks is not given. Use -np N for this machine, or -H or --hostfile "
            "for several."
        )
    found = size if size is not None else min(slots or 0, most or slots or 0)
    if (least is not None and found < least) or (most is not None and found > most):
        bounds = f"at least {least or 1}" + (f" and at most {most}" if most is not None else "")
        raise InvalidArgument(
            f"the job would have {found} ranks, and --min-np and --max-np ask for {bounds}. "
            "Correct them, -np, or the hosts."
        )
    return found


def discovered_hosts(script: Path, default_slots: int | None) -> list[Host]:
    """What the script of --host-discovery-script prints, one "host:slots" or "host" in a line.

    default_slots: for a host without a number (1).
    """
    source = f"--host-discovery-script {script}"
    path = str(script) if os.sep in str(script) else f".{os.sep}{script}"
    try:
        done = subprocess.run(
            [path], capture_output=True, text=True, timeout=_SCRIPT_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise InvalidArgument(
            f"{source} has not ended within {_SCRIPT_TIMEOUT_S} s. Run it by hand: it is to print the hosts and to end."
        ) from error
    except OSError as error:
        raise InvalidArgument(f"{source} cannot be run: {error}. {_remedy(error, path)}") from error
    if done.returncode:
        said = done.stderr.strip() or done.stdout.strip() or "nothing"
        raise InvalidArgument(
            f"{source} exited with status {done.returncode} and said: {said}. Run it by hand."
        )
    lines = done.stdout.splitlines()
    if default_slots is not None:
        lines = [_with_slots(each, default_slots) for each in lines]
    return parse_host_lines("\n".join(lines), source)


def _remedy(error: OSError, path: str) -> str:
    if isinstance(error, PermissionError):
        return f"Run: chmod +x {shlex.quote(path)}"
    if error.errno == errno.ENOEXEC:
        return "Let its first line say what runs it, such as #!/bin/sh."
    return "Correct the path, or that of the program in its first line."


def _with_slots(line: str, slots: int) -> str:
    has_slots = not line.strip() or re.search(r":\d+\s*$|slots=", line)
    return line if has_slots else f"{line} slots={slots}"
