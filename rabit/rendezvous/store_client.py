"""StoreClient: reads, changes and watches what the rendezvous store holds."""

from __future__ import annotations

from typing import Any, NamedTuple

from rabit._native import check, ffi, load
from rabit.errors import TimedOut

__all__ = ["StoreClient", "Versioned"]


class Versioned(NamedTuple):
    """What a key holds.  `version` counts how often it was set; 0: never, and `value` is empty."""

    version: int
    value: bytes


class StoreClient:
    """A connection to the store at `address` ("host:port"), for launchers and for ranks.  Thread-safe.

    secret: of the job.  rank: of this process, for messages; -1 if it has none.
    Raises InvalidArgument if the secret is another one, TimedOut if no one answers in `timeout` seconds.
    """

    def __init__(
        self,
        address: str,
        secret: bytes,
        *,
        rank: int = -1,
        timeout: float = 60.0,
        library_path: str = "",
    ) -> None:
        self._library: Any = load(library_path)
        options = (
            f"address={address}\nsecret={secret.hex()}\nrank={rank}\ntimeout_ms={_ms(timeout)}\n"
        )
        slot = ffi.new("rabit_store_client**")
        check(self._library, self._library.rabit_store_connect(options.encode(), slot))
        self._client: Any = ffi.gc(slot[0], self._library.rabit_store_disconnect)

    def set(self, key: str, value: bytes) -> None:
        """Gives `key` this value; at most 256 bytes of key and 64 KiB of value."""
        done = self._library.rabit_store_set(self._client, key.encode(), value, len(value))
        check(self._library, done)

    def get(self, key: str, timeout: float = 0.0) -> bytes:
        """The value of `key`; waits at most `timeout` seconds until it has one, then raises TimedOut."""
        return self.watch(key, 0, timeout).value

    def watch(self, key: str, seen: int, timeout: float) -> Versioned:
        """What `key` holds as soon as its version is later than `seen`.

        Waits at most `timeout` seconds, then raises TimedOut.
        """
        value, length = ffi.new("char[]", self._library.RABIT_STORE_VALUE_MAX), ffi.new("size_t*")
        version = ffi.new("uint64_t*", seen)
        limit = _ms(timeout)
        done = self._library.rabit_store_watch(
            self._client, key.encode(), limit, value, len(value), length, version
        )
        check(self._library, done)
        return Versioned(int(version[0]), bytes(ffi.buffer(value, length[0])))

    def compare_and_set(self, key: str, version: int, value: bytes) -> tuple[bool, Versioned]:
        """Gives `key` this value if it has `version` still; 0: if it has never been set.

        Returns whether it did so, and what the key holds then: on failure what to look at next.
        """
        held, length = ffi.new("char[]", self._library.RABIT_STORE_VALUE_MAX), ffi.new("size_t*")
        current, is_mine = ffi.new("uint64_t*", version), ffi.new("int32_t*")
        done = self._library.rabit_store_compare_and_set(
            self._client,
            key.encode(),
            value,
            len(value),
            held,
            len(held),
            length,
            current,
            is_mine,
        )
        check(self._library, done)
        return bool(is_mine[0]), Versioned(int(current[0]), bytes(ffi.buffer(held, length[0])))

    def tell(self, key: str, value: bytes) -> None:
        """Gives `key` this value unless it has one."""
        self.compare_and_set(key, 0, value)

    def told(self, key: str) -> bytes | None:
        """What `key` holds now; None: nothing."""
        try:
            return self.get(key)
        except TimedOut:
            return None

    def unreached(self) -> list[int]:
        """Of several stores those that do not answer: this one is alone."""
        return []

    def close(self) -> None:
        """Disconnects.  No call may be under way.  Idempotent."""
        client, self._client = self._client, ffi.NULL
        if client != ffi.NULL:
            ffi.release(client)


def _ms(seconds: float) -> int:
    return max(0, round(seconds * 1000))
