"""Loader: the states of a generation, as tensors of the job that runs now."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rabit.checkpoint.errors import CheckpointDamaged
from rabit.checkpoint.folder import Folder, Reader
from rabit.checkpoint.leaves import NUMPY_ADAPTER, Adapter, Part, Stored, even_rows
from rabit.checkpoint.manifest import Manifest, Tensor
from rabit.checkpoint.tree import decode
from rabit.errors import InvalidArgument, RabitError

__all__ = ["Loader"]


class Loader:
    """For rank `rank` of `size`, whatever the size of the job that saved.  Keeps nothing."""

    def __init__(
        self, folder: Folder, adapters: Sequence[Adapter], rank: int, size: int, allow_pickle: bool
    ) -> None:
        self._folder = folder
        self._adapters = {adapter.name: adapter for adapter in adapters}
        self._rank = rank
        self._size = size
        self._allow_pickle = allow_pickle

    def load(self, manifest: Manifest) -> tuple[Any, Any]:
        """The state of all ranks, and that of this one: None if the saved job did not have it.

        Raises CheckpointDamaged or OSError.
        """
        state = self._decode(manifest, manifest.state, manifest.tensors, divides=True)
        own = self.local(manifest, self._rank) if self._rank < manifest.size else None
        return state, own

    def local(self, manifest: Manifest, rank: int) -> Any:
        """What `rank` saved for itself."""
        if not 0 <= rank < manifest.size:
            raise InvalidArgument(
                f"checkpoint: rank {rank} did not exist: generation {manifest.generation} was saved by "
                f"{manifest.size} ranks."
            )
        tensors = manifest.local_tensors[rank]
        return self._decode(manifest, manifest.local[rank], tensors, divides=False)

    def _decode(
        self, manifest: Manifest, document: Any, tensors: dict[str, Tensor], *, divides: bool
    ) -> Any:
        reader = Reader(self._folder, manifest)

        def find(path: str) -> Tensor:
            if path not in tensors:
                raise CheckpointDamaged(
                    f"generation {manifest.generation} in {self._folder.path} lists no tensor '{path}'."
                )
            return tensors[path]

        def tensor(path: str, name: str) -> Any:
            found = find(path)
            stored = Stored(found.dtype, found.shape, reader.tensor(found))
            if name == "scalar":
                return NUMPY_ADAPTER.value(stored)[()]
            return self._adapters.get(name, NUMPY_ADAPTER).value(stored)

        def part(path: str, name: str) -> Part:
            found = find(path)
            rows = found.shape[0]
            first, last = even_rows(rows, self._rank, self._size) if divides else (0, rows)
            width = math.prod(found.shape[1:])
            data = reader.tensor(found, first * width, last * width)
            stored = Stored(found.dtype, (last - first, *found.shape[1:]), data)
            return Part(self._adapters.get(name, NUMPY_ADAPTER).value(stored), first, rows)

        try:
            return decode(document, tensor, part, allow_pickle=self._allow_pickle)
        except (RabitError, OSError, MemoryError):
            raise
        except Exception as error:  # Whatever a document leads to that somebody else wrote.
            raise CheckpointDamaged(
                f"generation {manifest.generation} in {self._folder.path} is damaged: its values cannot be made "
                f"out: {type(error).__name__}: {error}."
            ) from error
