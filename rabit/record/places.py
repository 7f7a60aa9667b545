"""Where records lie, and what a process can say of its host in one.

Every rank loads it: it takes nothing of the standard library that init() does not load anyway.
"""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Mapping
from typing import Any

__all__ = ["FOLDER_VARIABLE", "host_facts", "own_folder", "private_root", "remove_folder", "start_ticks"]

# Of the launcher: the folder in which it keeps the records of its ranks.
FOLDER_VARIABLE = "_RABIT_RECORD_FOLDER"
_KEPT_FOLDERS = 5


def start_ticks(pid: int) -> int:
    """When the process started, which tells it from a later one of the same number; 0: there is none."""
    text = _text(f"/proc/{pid}/stat")
    return int(text.rpartition(")")[2].split()[19]) if text else 0


def host_facts() -> dict[str, Any]:
    """Of this host and what this process may use of it."""
    limits = {
        name: resource.getrlimit(number)[0]
        for name, number in (
            ("open_files", resource.RLIMIT_NOFILE),
            ("locked_bytes", resource.RLIMIT_MEMLOCK),
            ("processes", resource.RLIMIT_NPROC),
        )
    }
    return {
        "host": os.uname().nodename,
        "boot": _text("/proc/sys/kernel/random/boot_id").strip(),
        "affinity": sorted(os.sched_getaffinity(0)),
        "processors": os.cpu_count() or 1,
        "limits": limits,
    }


def _text(path: str) -> str:
    try:
        with open(path) as file:  # noqa: PTH123
            return file.read()
    except OSError:
        return ""


def private_root(environ: Mapping[str, str]) -> str:
    """The folder of this user for what belongs to running jobs, of mode 0700; it is made.

    Raises OSError if something else has its name.
    """
    root = f"{environ.get('TMPDIR') or '/tmp'}/rabit-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        os.mkdir(root, 0o700)  # noqa: PTH102
    found = os.lstat(root)
    # 0o40700: a folder that only its owner may enter.
    if found.st_uid != os.getuid() or found.st_mode != 0o40700:
        raise PermissionError(1, f"{root} is not a private folder of this user")
    return root


def own_folder(name: str, environ: Mapping[str, str]) -> str:
    """A new private folder for the records of one job, or of one process without a launcher.

    Raises OSError where there is no room for one.
    """
    root = private_root(environ)
    _clean_old(root)
    folder = f"{root}/{name}-{os.getpid()}-{os.urandom(4).hex()}"
    os.mkdir(folder, 0o700)  # noqa: PTH102
    return folder


def remove_folder(folder: str) -> None:
    """Removes a folder of records, as far as it can be."""
    with contextlib.suppress(OSError):
        for each in os.listdir(folder):  # noqa: PTH208
            os.unlink(f"{folder}/{each}")  # noqa: PTH108
        os.rmdir(folder)  # noqa: PTH106


def _clean_old(root: str) -> None:
    """Removes folders that jobs left behind, but for the newest."""
    left = []
    with contextlib.suppress(OSError), os.scandir(root) as found:
        for each in found:
            parts = each.name.split("-")
            is_ours = len(parts) == 3 and parts[1].isdigit() and each.is_dir(follow_symlinks=False)
            if is_ours and not os.path.exists(f"/proc/{parts[1]}"):  # noqa: PTH110
                left.append((each.stat().st_mtime, each.path))
    for _, path in sorted(left, reverse=True)[_KEPT_FOLDERS:]:
        remove_folder(path)
