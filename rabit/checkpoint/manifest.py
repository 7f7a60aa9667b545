"""The manifest of a generation: what was saved, in which files, with which checksums."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rabit.checkpoint.leaves import ELEMENT_BYTES

__all__ = ["FORMAT", "Manifest", "Shard", "StoredPiece", "Tensor", "sha256_of"]

FORMAT = 1


@dataclass(frozen=True)
class StoredPiece:
    """Elements `start` to `start + count` of a tensor, which lie in file `shard` as `name`."""

    shard: int
    name: str
    start: int
    count: int
    sha256: str


@dataclass(frozen=True)
class Tensor:
    """A tensor of the saved state; its pieces cover it, in order."""

    dtype: str
    shape: tuple[int, ...]
    pieces: tuple[StoredPiece, ...]

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.count * ELEMENT_BYTES[self.dtype]


@dataclass(frozen=True)
class Shard:
    """The file of one rank.  header_sha256: of all before the first tensor."""

    file: str
    bytes: int
    header_sha256: str


@dataclass(frozen=True)
class Manifest:
    """All about one generation.

    state: the document of what is equal on all ranks (see tree); local: those of what each rank has
    for itself, in rank order.  tensors: of `state` by path; local_tensors: of each of `local`.
    """

    generation: int
    step: int
    size: int
    saved_at: str
    rabit: str
    state: Any
    local: tuple[Any, ...]
    tensors: dict[str, Tensor]
    local_tensors: tuple[dict[str, Tensor], ...]
    shards: tuple[Shard, ...]
    format: int = field(default=FORMAT)

    @property
    def bytes(self) -> int:
        """Of all files but the manifest itself."""
        return sum(shard.bytes for shard in self.shards)

    def to_text(self) -> str:
        """The file: JSON, whose "sha256" is that of the same text without it."""
        document = asdict(self)
        return _text({"sha256": sha256_of(_text(document).encode()), **document})

    @classmethod
    def from_text(cls, text: str) -> Manifest:
        """Raises ValueError if `text` is not, to the last byte, what `to_text` gave.

        What is returned fits together, and names nothing outside of its folder, also when an attacker wrote it.
        """
        document = json.loads(text)
        if not isinstance(document, dict) or _text(document) != text:
            raise ValueError("the text was changed")
        checksum = document.pop("sha256", None)
        if checksum != sha256_of(_text(document).encode()):
            raise ValueError("its checksum does not match its content")
        if document["format"] != FORMAT:
            raise ValueError(
                f"it has format {document['format']}, and this version of rabit reads {FORMAT}"
            )
        _check(isinstance(document["tensors"], dict), "its tensors have no names")
        document["tensors"] = _tensors(document["tensors"])
        document["local_tensors"] = tuple(_tensors(row) for row in document["local_tensors"])
        document["local"] = tuple(document["local"])
        document["shards"] = tuple(Shard(**row) for row in document["shards"])
        found = cls(**document)
        _check_sizes(found)
        for tensors in (found.tensors, *found.local_tensors):
            for name, tensor in tensors.items():
                _check_tensor(name, tensor, found.shards)
        return found


def sha256_of(data: Any) -> str:
    """Of anything with bytes; the interpreter runs other threads meanwhile."""
    return hashlib.sha256(data).hexdigest()


def _tensors(document: dict[str, Any]) -> dict[str, Tensor]:
    return {
        name: Tensor(
            value["dtype"],
            tuple(value["shape"]),
            tuple(StoredPiece(**piece) for piece in value["pieces"]),
        )
        for name, value in document.items()
    }


def _check_sizes(found: Manifest) -> None:
    _check(_are_counts(found.generation, found.step, found.size), "its generation, step or size is not a count")
    ranks = {found.size, len(found.local), len(found.local_tensors), len(found.shards)}
    _check(len(ranks) == 1, f"it is of {found.size} ranks and has the files of {len(found.shards)}")
    for shard in found.shards:
        _check(_is_plain_name(shard.file), f"it names the file {shard.file!r}, outside of its folder")
        _check(_are_counts(shard.bytes), f"{shard.file} has {shard.bytes!r} bytes")


def _check_tensor(name: str, tensor: Tensor, shards: Sequence[Shard]) -> None:
    _check(tensor.dtype in ELEMENT_BYTES, f"tensor '{name}' is of type {tensor.dtype!r}")
    _check(_are_counts(*tensor.shape), f"tensor '{name}' has shape {tensor.shape}")
    at = 0
    for piece in tensor.pieces:
        is_piece = _are_counts(piece.shard, piece.start, piece.count) and isinstance(piece.name, str)
        _check(is_piece, f"a piece of tensor '{name}' is {piece}")
        _check(piece.shard < len(shards), f"tensor '{name}' lies in file {piece.shard} of {len(shards)}")
        _check(piece.start == at, f"tensor '{name}' has pieces that do not follow one another")
        at += piece.count
    _check(at == tensor.count, f"tensor '{name}' has {tensor.count} elements, and pieces of {at}")


def _check(holds: bool, problem: str) -> None:
    if not holds:
        raise ValueError(problem)


def _are_counts(*values: Any) -> bool:
    return all(type(value) is int and value >= 0 for value in values)


def _is_plain_name(name: Any) -> bool:
    """Not a path: a manifest that somebody else wrote must not have other files read."""
    return isinstance(name, str) and name not in ("", ".", "..") and not set(name) & set("/\\\0")


def _text(document: Any) -> str:
    return json.dumps(document, indent=1, allow_nan=False) + "\n"
