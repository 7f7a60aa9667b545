"""The folder of a job's checkpoints: one folder for each generation, which counts once it is whole.

    DIR/generation-00000012/shard-00000-of-00004.safetensors
                            …
                            manifest.json                     comes last
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from rabit.checkpoint.errors import CheckpointDamaged
from rabit.checkpoint.files import Files
from rabit.checkpoint.leaves import ELEMENT_BYTES, Bytes
from rabit.checkpoint.manifest import Manifest, Shard, StoredPiece, Tensor, sha256_of
from rabit.checkpoint.safetensors import LARGEST_HEADER, Entry, parse_header

__all__ = ["MANIFEST", "PARTIAL", "Folder", "Reader", "shard_name"]

MANIFEST = "manifest.json"
PARTIAL = ".partial"  # ends the name of a file that is being written
# As `generation` writes them: others would be read from, and removed in, another folder.
_GENERATION = re.compile(r"generation-([0-9]{8}|[1-9][0-9]{8,})")


def shard_name(rank: int, size: int) -> str:
    """The file of `rank`."""
    return f"shard-{rank:05d}-of-{size:05d}.safetensors"


class Folder:
    """Reads and removes generations.  Thread-safe; keeps nothing of what it read."""

    def __init__(self, path: Path, files: Files | None = None) -> None:
        self.path = path
        self.files = files or Files()

    def generation(self, number: int) -> Path:
        """The folder of a generation."""
        return self.path / f"generation-{number:08d}"

    def numbers(self) -> list[int]:
        """The generations that were begun, whole or not, the oldest first."""
        found = (_GENERATION.fullmatch(name) for name in self.files.names(self.path))
        numbers = {int(match[1]) for match in found if match}
        return sorted(numbers)

    def committed(self) -> list[int]:
        """The generations that have a manifest, the oldest first."""
        return [n for n in self.numbers() if MANIFEST in self.files.names(self.generation(n))]

    def manifest(self, number: int) -> Manifest:
        """Raises CheckpointDamaged if it was changed since, OSError if it cannot be read."""
        path = self.generation(number) / MANIFEST
        data = self._bytes(path)
        try:
            found = Manifest.from_text(data.decode())
        except Exception as error:  # Whatever a text leads to that somebody else wrote.
            raise CheckpointDamaged(f"{path} is damaged: {_reason(error)}.") from error
        if found.generation != number:
            raise CheckpointDamaged(
                f"{path} is that of generation {found.generation}: the folder was renamed."
            )
        return found

    def problems(self, number: int) -> list[str]:
        """All that is wrong with a generation, after reading all of it; empty if it is whole."""
        try:
            manifest = self.manifest(number)
        except (CheckpointDamaged, OSError) as error:
            return [str(error)]
        reader, found = Reader(self, manifest), []
        for index in range(len(manifest.shards)):
            try:
                reader.check(index)
            except (CheckpointDamaged, OSError) as error:
                found.append(str(error))
        return found

    def remove(self, number: int) -> None:
        """Removes a generation; from the first moment on it does not count any more."""
        path = self.generation(number)
        names = self.files.names(path)
        if MANIFEST in names:
            self.files.remove(path / MANIFEST)
            self.files.sync_folder(path)
        for name in names:
            if name != MANIFEST:
                self.files.remove(path / name)
        self.files.remove_folder(path)

    def _bytes(self, path: Path) -> bytes:
        data = bytearray(self.files.size(path))
        count = self.files.read(path, 0, memoryview(data))
        return bytes(data[:count])


class Reader:
    """Reads the tensors of one generation, and checks every byte that it gives out."""

    def __init__(self, folder: Folder, manifest: Manifest) -> None:
        self.manifest = manifest
        self._folder = folder
        self._path = folder.generation(manifest.generation)
        self._entries: dict[int, dict[str, Entry]] = {}

    def tensor(self, tensor: Tensor, first: int = 0, last: int | None = None) -> Bytes:
        """The bytes of elements `first` to `last` (None: all), in memory of their own.

        Raises CheckpointDamaged or OSError.
        """
        width = ELEMENT_BYTES[tensor.dtype]
        last = tensor.count if last is None else last
        for piece in tensor.pieces:  # Before memory is taken for what no file may have.
            if first < piece.start + piece.count and piece.start < last:
                self._entry(piece, piece.count * width)
        data = np.empty((last - first) * width, np.uint8)
        at = first
        for part in tensor.pieces:
            stop = min(part.start + part.count, last)
            if part.start > at or stop <= at:
                continue
            into = data[(at - first) * width : (stop - first) * width]
            if (at, stop) == (part.start, part.start + part.count):
                self._read(part, into)
            else:
                whole = np.empty(part.count * width, np.uint8)
                self._read(part, whole)
                into[:] = whole[(at - part.start) * width : (stop - part.start) * width]
            at = stop
        if at != last:
            raise CheckpointDamaged(f"{self._path}: elements {at} to {last} of a tensor are in no file.")
        return data

    def check(self, index: int) -> None:
        """Reads all of a shard.  Raises CheckpointDamaged or OSError."""
        # A piece that no tensor mentions, and a tensor that is in no file, are damage as well.
        unused = dict(self._shard(index))
        for piece in self._pieces(index):
            entry = unused.pop(piece.name, None)
            if entry is None:
                raise self._damaged(index, f"it has no tensor '{piece.name}'")
            self._read(piece, np.empty(entry.bytes, np.uint8))
        if unused:
            raise self._damaged(index, f"nothing refers to its tensor '{next(iter(unused))}'")

    def _pieces(self, index: int) -> Iterator[StoredPiece]:
        for tensors in (self.manifest.tensors, *self.manifest.local_tensors):
            for tensor in tensors.values():
                yield from (piece for piece in tensor.pieces if piece.shard == index)

    def _read(self, piece: StoredPiece, into: Bytes) -> None:
        entry = self._entry(piece, into.nbytes)
        path = self._path / self.manifest.shards[piece.shard].file
        count = self._folder.files.read(path, entry.start, into.data)
        if count != into.nbytes or sha256_of(into) != piece.sha256:
            raise self._damaged(piece.shard, f"the bytes of tensor '{piece.name}' were changed")

    def _entry(self, piece: StoredPiece, expected_bytes: int) -> Entry:
        entry = self._shard(piece.shard).get(piece.name)
        if entry is None or entry.bytes != expected_bytes:
            raise self._damaged(piece.shard, f"it does not hold tensor '{piece.name}' as expected")
        return entry

    def _shard(self, index: int) -> dict[str, Entry]:
        """The tensors of a file by name, after its size and header were checked."""
        if index not in self._entries:
            shard = self.manifest.shards[index]
            self._entries[index] = {entry.name: entry for entry in self._header(index, shard)}
        return self._entries[index]

    def _header(self, index: int, shard: Shard) -> list[Entry]:
        files, path = self._folder.files, self._path / shard.file
        try:
            size = files.size(path)
        except FileNotFoundError as error:
            raise self._damaged(index, "it is missing") from error
        if size != shard.bytes:
            raise self._damaged(index, f"it has {size} bytes, and {shard.bytes} were written")
        length = np.zeros(8, np.uint8)
        files.read(path, 0, length.data)
        count = int(length.view(np.uint64)[0])
        if count > min(LARGEST_HEADER, size - 8):
            raise self._damaged(index, f"its header would have {count} bytes")
        head = np.zeros(8 + count, np.uint8)
        files.read(path, 0, head.data)
        if sha256_of(head) != shard.header_sha256:
            raise self._damaged(index, "its header was changed")
        try:
            return parse_header(head.tobytes(), size)
        except Exception as error:  # As for the manifest.
            raise self._damaged(index, f"its header cannot be used: {_reason(error)}") from error

    def _damaged(self, index: int, why: str) -> CheckpointDamaged:
        return CheckpointDamaged(
            f"{self._path / self.manifest.shards[index].file} is damaged: {why}."
        )


def _reason(error: Exception) -> str:
    """A KeyError says no more than the key."""
    return str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
