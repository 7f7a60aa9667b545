"""The header of files of safetensors, as their documentation has it: a length of 8 bytes, JSON, data.

Written and read here, since the format is a page long and a library would be a dependency.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

from rabit.checkpoint.leaves import ELEMENT_BYTES

__all__ = ["LARGEST_HEADER", "Entry", "header", "parse_header"]

LARGEST_HEADER = 100_000_000  # bytes; the limit of the format


@dataclass(frozen=True)
class Entry:
    """A tensor of a file.  start: its first byte, counted from the start of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int = 0

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * ELEMENT_BYTES[self.dtype]


def header(entries: Sequence[Entry], metadata: dict[str, str]) -> bytes:
    """The first bytes of a file whose tensors follow in this order; `start` is not read."""
    document: dict[str, object] = {"__metadata__": metadata}
    at = 0
    for entry in entries:
        document[entry.name] = {
            "dtype": entry.dtype,
            "shape": list(entry.shape),
            "data_offsets": [at, at + entry.bytes],
        }
        at += entry.bytes
    text = json.dumps(document, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def parse_header(data: bytes, file_bytes: int) -> list[Entry]:
    """The tensors of a file that begins with `data`, its whole header.

    Raises ValueError unless they fill the file without a gap.
    """
    document = json.loads(data[8:])
    document.pop("__metadata__", None)
    found = []
    for name, value in document.items():
        first, last = value["data_offsets"]
        entry = Entry(name, value["dtype"], tuple(value["shape"]), len(data) + first)
        if any(type(number) is not int or number < 0 for number in (first, last, *entry.shape)):
            raise ValueError(f"tensor '{name}' is {value}, whose offsets are not numbers")
        if entry.dtype not in ELEMENT_BYTES or entry.bytes != last - first:
            raise ValueError(f"tensor '{name}' is {value}, which does not fit together")
        found.append(entry)
    found.sort(key=lambda entry: (entry.start, entry.bytes))
    end = len(data)
    for entry in found:
        if entry.start != end:
            raise ValueError(f"tensor '{entry.name}' begins at byte {entry.start} and not at {end}")
        end += entry.bytes
    if end != file_bytes:
        raise ValueError(f"the file has {file_bytes} bytes, and its tensors end at {end}")
    return found
