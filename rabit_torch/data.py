"""Balanced samplers and a cached data set in the shapes of torch.utils.data; rabit.data says what they do.

    from rabit_torch.data import CachedDataset, LoadBalancingDistributedSampler

    dataset = CachedDataset(dataset, "cache", name="captions, 80 words")
    sampler = LoadBalancingDistributedSampler(dataset, lambda sample: len(sample[0]))
    loader = torch.utils.data.DataLoader(dataset, batch_size=32, sampler=sampler, num_workers=4)
"""

from __future__ import annotations

from typing import Any

from torch.utils.data import Dataset, Sampler

import rabit.data
from rabit.data import CacheLoader, CacheStatistics

__all__ = [
    "CacheLoader",
    "CacheStatistics",
    "CachedDataset",
    "LoadBalancingDistributedBatchSampler",
    "LoadBalancingDistributedSampler",
]


class LoadBalancingDistributedSampler(rabit.data.LoadBalancingDistributedSampler, Sampler[int]):
    """rabit.data.LoadBalancingDistributedSampler, a torch.utils.data.Sampler."""


class LoadBalancingDistributedBatchSampler(rabit.data.LoadBalancingDistributedBatchSampler, Sampler[list[int]]):
    """rabit.data.LoadBalancingDistributedBatchSampler, for DataLoader(batch_sampler=...)."""


class CachedDataset(rabit.data.CachedDataset, Dataset[Any]):
    """rabit.data.CachedDataset, a torch.utils.data.Dataset; each worker of a loader reads the file itself."""
