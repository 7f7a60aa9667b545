"""The rendezvous store, served by the launcher through the native library."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from rabit.rendezvous.addresses import format_address

__all__ = ["serve_store"]


@contextlib.contextmanager
def serve_store(address: str, secret: bytes) -> Iterator[str]:
    """Serves the store on `address`, at a port the system chooses; gives "host:port".

    The store runs in a native thread until the block ends.  Raises RabitError when the native
    library is missing or the address is not of this host.
    """
    # Jobs of one process and of other launchers need no store, and no native library here.
    from rabit.rendezvous.discovery import StoreServer

    with contextlib.closing(StoreServer(address, 0, secret)) as store:
        yield format_address(address, store.port)
