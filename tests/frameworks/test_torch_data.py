"""Balanced samplers and cached data sets in torch's DataLoader, with and without workers."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader

from rabit_torch.data import (
    CachedDataset,
    LoadBalancingDistributedBatchSampler,
    LoadBalancingDistributedSampler,
)

LENGTHS = torch.randperm(40, generator=torch.Generator().manual_seed(2)) + 1


class Sentences(torch.utils.data.Dataset):
    """Of 1 to 40 words; each may be made `times` times."""

    def __init__(self, folder, times):
        self.folder, self.times = folder, times

    def __len__(self):
        return len(LENGTHS)

    def __getitem__(self, index):
        with (self.folder / str(index)).open("a") as file:
            assert file.tell() < self.times, f"sentence {index} is made again"
            file.write("x")
        return torch.full((int(LENGTHS[index]),), index)


def loader(dataset, workers, **how):
    return DataLoader(dataset, num_workers=workers, collate_fn=list, **how)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_makes_each_sample_once_in_all_epochs(tmp_path, workers):
    # Workers of one epoch may hold the same sample at a time only if they were asked for it twice.
    cached = CachedDataset(Sentences(tmp_path, times=1), tmp_path / "cache", name="words")
    seen = []
    for rank in range(2):
        sampler = LoadBalancingDistributedSampler(cached.dataset, LENGTHS.numpy(), 2, rank)
        for epoch in range(2):
            sampler.set_epoch(2 * epoch + rank)
            seen += [
                int(each[0])
                for batch in loader(cached, workers, batch_size=4, sampler=sampler)
                for each in batch
            ]
            cached.cache.flush()

    assert len(seen) == 80 and set(seen) == set(range(40))


def test_batches_are_made_of_the_samples_that_the_function_chose(tmp_path):
    dataset = Sentences(tmp_path, times=2)
    inner = LoadBalancingDistributedSampler(dataset, len, 2, 1, shuffle=False)

    batches = LoadBalancingDistributedBatchSampler(
        inner, lambda indices: [indices[:5], indices[5:20]]
    )
    found = list(loader(dataset, 0, batch_sampler=batches))

    assert [[len(each) for each in batch] for batch in found] == [
        list(range(2, 11, 2)),
        list(range(12, 41, 2)),
    ]
