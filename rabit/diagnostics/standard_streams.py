"""Standard streams that a process was started without."""

from __future__ import annotations

import os

__all__ = ["open_standard_streams"]


def open_standard_streams() -> None:
    """From now on they lead nowhere, in this process and its children.

    The descriptor of one that is closed is free, and so the next socket's: what somebody then writes
    to standard output or error would go to another rank.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            found = os.open(os.devnull, os.O_RDWR)  # The lowest that is free.
            if found == descriptor:
                os.set_inheritable(found, True)
            else:  # Another thread has taken it meanwhile.
                os.close(found)
