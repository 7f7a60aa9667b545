"""The commit of one generation: every rank writes its file, then rank 0 the manifest.

A generation counts from the moment at which the manifest has its name.  Until then nothing that
counted before is touched, and whoever dies leaves files behind that no one reads.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from rabit.checkpoint.errors import CheckpointFailed
from rabit.checkpoint.files import Files
from rabit.checkpoint.folder import MANIFEST, PARTIAL, Folder, shard_name
from rabit.checkpoint.leaves import ELEMENT_BYTES, Bytes
from rabit.checkpoint.manifest import Manifest, Shard, StoredPiece, Tensor, sha256_of
from rabit.checkpoint.peers import Peers
from rabit.checkpoint.safetensors import Entry, header
from rabit.checkpoint.tree import first_difference
from rabit.checkpoint.writer import Writer
from rabit.errors import InvalidArgument, Mismatch
from rabit.version import __version__

__all__ = ["Commit", "Share", "ShareEntry", "described"]

_WRITE_BYTES = 16 << 20  # in one call, so that a signal or a full disk is noticed in between


@dataclass(frozen=True)
class ShareEntry:
    """One piece that this rank writes.

    name: in the file.  shape: of the whole tensor.  first_byte: in Share.data.
    is_local: of its own state, not of that of all ranks.
    """

    tensor: str
    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    count: int
    first_byte: int
    is_local: bool

    @property
    def piece_shape(self) -> tuple[int, ...]:
        """A whole tensor keeps its shape; others lie there as a row of elements."""
        return self.shape if self.count == math.prod(self.shape) else (self.count,)

    @property
    def bytes(self) -> int:
        return self.count * ELEMENT_BYTES[self.dtype]


@dataclass(frozen=True)
class Share:
    """What this rank writes, and what it says: a snapshot, which training does not touch."""

    step: int
    state: Any
    local: Any
    shapes: dict[str, list[Any]]  # of the tensors of `state`: type and shape
    entries: Sequence[ShareEntry]
    data: Bytes


class Commit:
    """Runs the commits of one job, one after the other.  Called by one thread at a time."""

    def __init__(self, folder: Folder, peers: Peers, name: str, keep: int, job: str = "") -> None:
        """job: the name of the job; see Writer."""
        self._folder = folder
        self._files: Files = folder.files
        self._peers = peers
        self._name = name
        self._keep = keep
        self._count = 0
        self._writer = Writer(folder.path, folder.files, job)

    def close(self) -> None:
        """Another job may write into the folder, until the next `run`."""
        self._writer.end()

    def run(self, share: Share) -> int:
        """Writes a generation; returns its number on all ranks.

        Raises Mismatch if the ranks save different things, CheckpointFailed if one of them cannot
        write: the same error on all ranks.  Blocks.
        """
        self._count += 1
        name = f"{self._name}.{self._count}"
        number = self._begin(name, share)
        written = self._write_share(number, share)
        said = self._peers.gather(f"{name}.written", written)
        self._fail_together(said, number)
        _check_cover(said)
        error = ""
        if self._peers.rank == 0:
            try:
                self._write_manifest(number, share, said)
            except Exception as failure:
                error = described(failure, self._folder.generation(number) / MANIFEST)
        self._fail_together(self._peers.gather(f"{name}.committed", {"error": error}), number)
        if self._peers.rank == 0:
            self._remove_old(number)
        return number

    def refuse(self, error: Exception) -> CheckpointFailed | None:
        """Takes the place of `run` where this rank has nothing to write, because of `error`.

        What `run` raises on the others; None if no rank has something to write.  Blocks.
        """
        self._count += 1
        text = f"{type(error).__name__}: {error}"
        said = self._peers.gather(f"{self._name}.{self._count}", {"refused": text})
        return None if all("refused" in answer for answer in said) else _refused(said)

    def _begin(self, name: str, share: Share) -> int:
        mine = {"step": share.step, "state": share.state, "tensors": share.shapes}
        number, digest, error = 0, "", ""
        try:
            digest = sha256_of(json.dumps(mine).encode())
            if self._peers.rank == 0:
                self._writer.begin()
                number = max(self._folder.numbers(), default=0) + 1
        except Exception as failure:  # Not only of the disk: the others wait for what this rank says.
            error = described(failure, self._folder.path)
        said = self._peers.gather(name, {"digest": digest, "number": number, "error": error})
        refused = _refused(said)
        if refused is not None:
            raise refused
        self._fail_together(said, 0)
        if any(answer["digest"] != said[0]["digest"] for answer in said):
            self._tell_difference(name, mine)
        return int(said[0]["number"])

    def _tell_difference(self, name: str, mine: Any) -> None:
        said = self._peers.gather(f"{name}.states", mine)
        for rank, answer in enumerate(said):
            where = first_difference(said[0], answer)
            if where:
                raise Mismatch(
                    f"checkpoint: ranks 0 and {rank} save different states: {where} there. What is "
                    "saved must be equal on all ranks; pass what is not as local=.",
                    rank,
                )

    def _write_share(self, number: int, share: Share) -> dict[str, Any]:
        """Writes the file of this rank; what it says to the others."""
        folder = self._folder.generation(number)
        path = folder / shard_name(self._peers.rank, self._peers.size)
        try:
            checksums = [
                sha256_of(share.data[entry.first_byte : entry.first_byte + entry.bytes]) for entry in share.entries
            ]
            entries = [Entry(saved.name, saved.dtype, saved.piece_shape) for saved in share.entries]
            head = header(entries, {"format": "pt", "rabit": __version__})
            shard = Shard(path.name, len(head) + share.data.nbytes, sha256_of(head))
            self._files.make_folder(folder)
            self._write_file(path, [memoryview(head), share.data.data])
        except Exception as failure:  # Not only of the disk: the others wait for what this rank says.
            self._drop(path)
            return {"error": described(failure, path)}
        pieces = [
            [saved.tensor, saved.dtype, saved.shape, saved.is_local,
             [self._peers.rank, saved.name, saved.start, saved.count, checksum]]
            for saved, checksum in zip(share.entries, checksums, strict=True)
        ]  # fmt: skip
        return {"error": "", "shard": asdict(shard), "pieces": pieces, "local": share.local}

    def _write_file(self, path: Path, pieces: Sequence[memoryview]) -> None:
        """When it returns, the file is on disk under its name, with all of its content."""
        partial = path.with_name(path.name + PARTIAL)
        descriptor = self._files.create(partial)
        try:
            for piece in pieces:
                for at in range(0, piece.nbytes, _WRITE_BYTES):
                    self._files.write(descriptor, piece[at : at + _WRITE_BYTES])
            self._files.sync(descriptor)
        finally:
            self._files.close(descriptor)
        self._files.rename(partial, path)
        self._files.sync_folder(path.parent)

    def _write_manifest(self, number: int, share: Share, said: Sequence[Any]) -> None:
        manifest = _manifest(number, share, said)
        folder = self._folder.generation(number)
        for shard in manifest.shards:
            # Each rank has synced its file; here it must have arrived, or ranks use different disks.
            if self._files.size(folder / shard.file) != shard.bytes:
                raise OSError(0, f"{shard.file} is not as its rank wrote it: do all ranks see one disk?")
        self._write_file(folder / MANIFEST, [memoryview(manifest.to_text().encode())])

    def _fail_together(self, said: Sequence[Any], number: int) -> None:
        """Raises if a rank said that it failed; all ranks have heard the same."""
        rank = next((rank for rank, answer in enumerate(said) if answer["error"]), None)
        if rank is None:
            return
        if number:
            self._drop(self._folder.generation(number) / shard_name(self._peers.rank, self._peers.size))
            if self._peers.rank == 0:
                self._drop(self._folder.generation(number) / MANIFEST)
        raise CheckpointFailed(
            f"checkpoint: rank {rank} could not write: {said[rank]['error']}. The generations before "
            "are whole. Make room or choose another folder; training can continue.",
            rank,
        )

    def _drop(self, path: Path) -> None:
        """Removes what was begun, as far as the disk lets it: the next commit tries again."""
        for file in (path, path.with_name(path.name + PARTIAL)):
            try:
                self._files.remove(file)
            except OSError:
                continue

    def _remove_old(self, newest: int) -> None:
        """Keeps `keep` whole generations; what was begun before them and is not whole goes as well.

        An error here costs room and nothing else, and the next commit tries again.
        """
        try:
            kept = self._folder.committed()[-self._keep :]
            for number in self._folder.numbers():
                if number < newest and number not in kept:
                    self._folder.remove(number)
        except OSError:
            return


def _refused(said: Sequence[Any]) -> CheckpointFailed | None:
    """The error of the first rank that has nothing to write."""
    rank = next((rank for rank, answer in enumerate(said) if "refused" in answer), None)
    if rank is None:
        return None
    return CheckpointFailed(
        f"checkpoint: rank {rank} did not save: {said[rank]['refused']}. The generations before are "
        "whole; training can continue.",
        rank,
    )


def _manifest(number: int, share: Share, said: Sequence[Any]) -> Manifest:
    found: dict[str, tuple[Any, list[StoredPiece]]] = {}
    local: list[dict[str, Tensor]] = []
    for each in said:
        own = {}
        for tensor, dtype, shape, is_local, piece in each["pieces"]:
            if is_local:
                own[tensor] = Tensor(dtype, tuple(shape), (StoredPiece(*piece),))
            else:
                found.setdefault(tensor, ((dtype, shape), []))[1].append(StoredPiece(*piece))
        local.append(own)
    tensors = {
        name: Tensor(
            dtype, tuple(shape), tuple(sorted(pieces, key=lambda each: (each.start, each.count)))
        )
        for name, ((dtype, shape), pieces) in sorted(found.items())
    }
    return Manifest(
        generation=number,
        step=share.step,
        size=len(said),
        saved_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        rabit=__version__,
        state=share.state,
        local=tuple(answer["local"] for answer in said),
        tensors=tensors,
        local_tensors=tuple(local),
        shards=tuple(Shard(**answer["shard"]) for answer in said),
    )


def _check_cover(said: Sequence[Any]) -> None:
    """Raises InvalidArgument unless the parts of the ranks make up every tensor, each row once."""
    ends: dict[str, list[tuple[int, int, int]]] = {}
    counts = {}
    for rank, answer in enumerate(said):
        for tensor, _, shape, is_local, (_, _, start, count, _) in answer["pieces"]:
            if not is_local:
                counts[tensor] = math.prod(shape)
                ends.setdefault(tensor, []).append((start, start + count, rank))
    for tensor, found in ends.items():
        at = 0
        for start, stop, rank in sorted(found):
            if start != at:
                raise InvalidArgument(
                    f"checkpoint: '{tensor}': the Part of rank {rank} begins at element {start}, and "
                    f"those before it end at {at}. The parts of all ranks must cover the tensor once.",
                    rank,
                )
            at = stop
        if at != counts[tensor]:
            raise InvalidArgument(
                f"checkpoint: '{tensor}': the parts of all ranks end at element {at} of "
                f"{counts[tensor]}. They must cover the tensor."
            )


def described(error: Exception, path: Path) -> str:
    """An error for the ranks that did not have it."""
    if isinstance(error, OSError):
        return f"{path}: {error.strerror or error}"
    return f"{path}: {type(error).__name__}: {error}"
