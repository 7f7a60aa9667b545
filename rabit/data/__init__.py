"""Which samples a rank takes, and samples that are made once: balanced samplers and a cache for each host.

    from rabit.data import CachedDataset, LoadBalancingDistributedSampler

    dataset = CachedDataset(dataset, "cache", name="captions, 80 words")
    sampler = LoadBalancingDistributedSampler(dataset, lambda sample: len(sample), random_level=0.1)
    for epoch in range(10):
        sampler.set_epoch(epoch)
        for index in sampler:
            ...

Names and meaning are Bagua's (Gan et al., "BAGUA: Scaling up Distributed Learning with System Relaxations", 2021).
rabit_torch.data has the same as torch's samplers and data sets; loaders of other frameworks take these.
"""

from rabit.data.balanced_batches import LoadBalancingDistributedBatchSampler
from rabit.data.balanced_sampler import LoadBalancingDistributedSampler
from rabit.data.cached_dataset import CachedDataset
from rabit.data.sample_cache import CacheLoader, CacheStatistics

__all__ = [
    "CacheLoader",
    "CacheStatistics",
    "CachedDataset",
    "LoadBalancingDistributedBatchSampler",
    "LoadBalancingDistributedSampler",
]
