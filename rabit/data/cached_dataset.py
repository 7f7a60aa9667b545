"""CachedDataset: a data set whose samples are made once on each host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rabit.data.sample_cache import CacheLoader

__all__ = ["CachedDataset"]


class CachedDataset:
    """`dataset`, of which a sample is made at its first use and then taken from a cache of this host.

    dataset: has a length, and samples by index that can be pickled.
    folder, name, capacity_bytes, writer_buffer_size: as those of CacheLoader.
    What is cached stays as it is: put random changes of samples (crops, noise) after the cache.
    """

    def __init__(
        self,
        dataset: Any,
        folder: str | Path,
        *,
        name: str,
        capacity_bytes: int = 8 << 30,
        writer_buffer_size: int = 20,
    ) -> None:
        self.dataset = dataset
        self.cache = CacheLoader(
            folder,
            name=name,
            capacity_bytes=capacity_bytes,
            writer_buffer_size=writer_buffer_size,
        )

    def __getitem__(self, index: int) -> Any:
        return self.cache.get(int(index), self.dataset.__getitem__)

    def __len__(self) -> int:
        return len(self.dataset)
