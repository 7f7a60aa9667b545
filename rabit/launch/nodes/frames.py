"""Frames between the launcher and the agent on another host, over ssh's standard streams."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from rabit.errors import InvalidArgument

__all__ = ["GREETING", "Decoder", "Kind", "frame"]

# What a login script prints comes before it and is skipped.
GREETING = b"\x00rabit-agent 1\n"
_HEADER = struct.Struct(">BII")
_LARGEST = 64 << 20


class Kind:
    """Of frames.  The agent sends those below 16, the launcher the others."""

    HELLO, STARTED, OUTPUT, CLOSED, EXITED, FAILED, DONE = 1, 2, 3, 4, 5, 6, 7
    LOOKED, STALLED, LAST = 8, 9, 10
    JOB, SIGNAL, PAUSE, END, LOOK = 16, 17, 18, 19, 20


def frame(kind: int, number: int = 0, payload: bytes = b"") -> bytes:
    """`number` is a rank, a signal, or a stream with its rank, as the kind has it."""
    return _HEADER.pack(kind, number, len(payload)) + payload


class Decoder:
    """Cuts a stream of bytes into frames."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[int, int, bytes]]:
        """The frames (kind, number, payload) that `data` completes.

        Raises InvalidArgument when a length is out of bounds.
        """
        self._data += data
        start = 0
        while len(self._data) - start >= _HEADER.size:
            kind, number, length = _HEADER.unpack_from(self._data, start)
            if length > _LARGEST:
                raise InvalidArgument(
                    f"a frame of {length} bytes came over ssh: at most {_LARGEST} are allowed. "
                    "Install the same version of mariza-rabit on every host."
                )
            end = start + _HEADER.size + length
            if len(self._data) < end:
                break
            yield kind, number, bytes(self._data[start + _HEADER.size : end])
            start = end
        del self._data[:start]
