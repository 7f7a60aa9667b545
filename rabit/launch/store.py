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
    from rabit import _native

    library = _native.load()
    store = _native.ffi.new("rabit_store**")
    port = _native.ffi.new("int32_t*")
    options = f"address={address}\nport=0\nsecret={secret.hex()}\n"
    _native.check(library, library.rabit_store_start(options.encode(), store, port))
    try:
        yield format_address(address, int(port[0]))
    finally:
        library.rabit_store_stop(store[0])
