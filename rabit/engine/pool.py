"""Pool: what of this process outlives its engines."""

from __future__ import annotations

import functools
import os
from typing import Any

from rabit._native import check, ffi, load
from rabit.config.config import Config
from rabit.engine.interruptible import interruptible

__all__ = ["Pool"]


class Pool:
    """The port, the client of the store and the connections of member `number` of an elastic job.

    number: of this process among all that the job ever has.  Each engine is started over it with the
    members of its epoch.  Lives as long as the process, which its connections cannot do without.
    Raises TimedOut if the store does not answer in `config.connect_timeout` seconds.
    """

    def __init__(self, config: Config, number: int) -> None:
        self.number = number
        library: Any = load(config.library)
        options = (
            f"member={number}\nstore={config.store_address}\nsecret={config.secret.hex()}\n"
            f"bind_address={config.bind_address}\n"
            f"connect_timeout_ms={int(config.connect_timeout * 1000)}\n"
        )
        pointer = interruptible(f"pool\n{options}", functools.partial(_open, library, options))
        pid = os.getpid()

        def close(pointer: Any) -> None:
            if os.getpid() == pid:  # A forked child owns none of it.
                library.rabit_pool_close(pointer)

        self.pointer: Any = ffi.gc(pointer, close)


def _open(library: Any, options: str) -> Any:
    slot = ffi.new("rabit_pool**")
    check(library, library.rabit_pool_open(options.encode(), slot))
    return slot[0]
