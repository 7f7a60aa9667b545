"""is_ready: waits for a descriptor, of any number."""

from __future__ import annotations

import select

__all__ = ["is_ready"]


def is_ready(descriptor: int, event: int, longest_s: float) -> bool:
    """True once `event` (select.POLLIN, select.POLLOUT) would not block, or the other side has closed.

    False if that has not come after `longest_s` seconds.  select.select() refuses descriptors from 1024 on, which a
    program with many files and connections has.
    """
    waiting = select.poll()
    waiting.register(descriptor, event)
    return bool(waiting.poll(1000 * longest_s))
