"""Small files that only their user may read: of secrets, and of where ranks meet."""

from __future__ import annotations

import os
import stat

from rabit.errors import InvalidArgument

__all__ = ["read_private_file"]

_LARGEST_FILE = 4096


def read_private_file(path: str | os.PathLike[str], what: str) -> str:
    """The text of a small file that belongs to this user and that no one else may read.

    Raises InvalidArgument for a symbolic link, another owner or a mode wider than 0600, and
    FileNotFoundError when there is none.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise InvalidArgument(
            f"the {what} {path} cannot be read: {error.strerror}. It must be a plain file of "
            "yours, not a symbolic link."
        ) from error
    try:
        found = os.fstat(descriptor)
        mode = stat.S_IMODE(found.st_mode)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid() or mode & 0o077:
            raise InvalidArgument(
                f"the {what} {path} is not safe (owner {found.st_uid}, mode {mode:04o}): "
                f"expected a file of user {os.getuid()} with mode 0600. "
                f"Run: chmod 600 {path}"
            )
        return os.read(descriptor, _LARGEST_FILE).decode("ascii", "replace")
    finally:
        os.close(descriptor)
