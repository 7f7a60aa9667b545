"""Samplers and cached data sets of rabit.data in Gluon's DataLoader."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

from rabit.data import (
    CachedDataset,
    LoadBalancingDistributedBatchSampler,
    LoadBalancingDistributedSampler,
)

SPEC = importlib.util.find_spec("mxnet")
if SPEC is not None and SPEC.origin is not None:  # Else it is this folder, and all tests are skipped.
    from rabit_mxnet.loaded import mx

LENGTHS = np.random.default_rng(4).permutation(np.arange(1, 25))


class Numbers:
    """Sample i is i; each may be made once."""

    def __init__(self):
        self.made = []

    def __len__(self):
        return len(LENGTHS)

    def __getitem__(self, index):
        assert index not in self.made
        self.made.append(index)
        return np.full(2, index)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_takes_batches_of_like_cost_from_the_cache(tmp_path, workers):
    source = Numbers()
    cached = CachedDataset(source, tmp_path / "cache", name="numbers", writer_buffer_size=1)
    sampler = LoadBalancingDistributedSampler(cached, LENGTHS, 2, 1)
    batches = LoadBalancingDistributedBatchSampler(sampler, lambda all_: [all_[:4], all_[4:]])

    def indices():
        loader = mx.gluon.data.DataLoader(
            cached, batch_sampler=batches, num_workers=workers, thread_pool=True
        )
        return [batch.asnumpy()[:, 0].astype(int).tolist() for batch in loader]

    first, again = indices(), indices()

    assert first == again == [list(each) for each in batches]
    assert sorted(source.made) == sorted(sampler)
