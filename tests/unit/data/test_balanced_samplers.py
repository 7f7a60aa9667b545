"""Which samples ranks take, and in which batches; Bagua's tests of its samplers, and what holds beside them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as draw

from rabit import InvalidArgument
from rabit.data import LoadBalancingDistributedBatchSampler, LoadBalancingDistributedSampler
from rabit.testing import run_ranks

LENGTHS = np.random.default_rng(3).permutation(np.arange(1, 61))


def sampler(ranks=3, rank=0, lengths=LENGTHS, **more):
    return LoadBalancingDistributedSampler(lengths, lengths, ranks, rank, **more)


def test_without_shuffling_ranks_take_samples_in_the_order_of_their_complexity():
    dealt = [LENGTHS[list(sampler(3, rank, shuffle=False))] for rank in range(3)]

    assert np.stack(dealt, axis=1).ravel().tolist() == list(range(1, 61))


def test_a_function_of_a_sample_is_asked_once_for_each():
    asked = []

    def complexity(sample):
        asked.append(sample)
        return len(sample)

    words = ["ccc", "a", "bb", "dddd"]
    found = LoadBalancingDistributedSampler(words, complexity, 2, 1, shuffle=False)

    assert [list(found), len(found)] == [[2, 3], 2]
    assert asked == words


@given(
    count=draw.integers(0, 40),
    ranks=draw.integers(1, 7),
    drop_last=draw.booleans(),
    shuffle=draw.booleans(),
    level=draw.sampled_from([0.0, 0.3, 1.0]),
    epoch=draw.integers(0, 3),
)
def test_ranks_take_as_many_samples_each_and_all_of_them_before_any_twice(
    count, ranks, drop_last, shuffle, level, epoch
):
    lengths = np.random.default_rng(count).integers(1, 9, count)
    made = [
        sampler(ranks, rank, lengths, drop_last=drop_last, shuffle=shuffle, random_level=level)
        for rank in range(ranks)
    ]
    for each in made:
        each.set_epoch(epoch)

    taken = [list(each) for each in made]

    steps = count // ranks if drop_last else -(-count // ranks)
    assert [len(each) for each in made] == [len(each) for each in taken] == [steps] * ranks
    counts = np.bincount(np.array(taken, int).ravel(), minlength=count)
    if drop_last:
        assert counts.max(initial=0) <= 1
    elif count:
        assert counts.min() >= 1 and counts.max() - counts.min() <= 1


def test_epochs_differ_and_come_again():
    found = sampler()

    def order(epoch):
        found.set_epoch(epoch)
        return list(found)

    assert order(0) == order(0) != order(1)
    assert sorted(LENGTHS[order(1)]) != list(range(1, 21))  # A third of the samples, and not the shortest.


def test_what_is_left_out_is_not_the_same_in_every_epoch():
    found = sampler(7, drop_last=True)
    left = set()
    for epoch in range(6):
        found.set_epoch(epoch)
        left.add(frozenset(range(60)) - set(found.shares().ravel().tolist()))

    assert len(left) > 1


def idle(shares):
    """Of the work of a step, the share that ranks wait for the slowest of them."""
    cost = LENGTHS[shares]
    return 1 - cost.sum() / (cost.max(axis=1).sum() * shares.shape[1])


def test_ranks_wait_less_for_each_other_the_less_noise_there_is():
    at_random = np.random.default_rng(0).permutation(60).reshape(-1, 3)

    levels = [idle(sampler(random_level=level).shares()) for level in (0.0, 0.1, 1.0)]

    assert levels[0] < 0.04 < levels[1] < 0.15 < levels[2] < 1.5 * idle(at_random)


def test_ranks_of_a_job_deal_the_samples_among_each_other():
    def on_rank(engine):
        return list(LoadBalancingDistributedSampler(LENGTHS, LENGTHS))

    taken = run_ranks(3, on_rank)

    assert taken == [list(sampler(3, rank)) for rank in range(3)]


def growing(indices):
    """Batch i has i + 1 samples."""
    batches, first = [], 0
    while first < len(indices):
        batches.append(indices[first : first + len(batches) + 1])
        first += len(batches)
    return batches


def test_batches_have_the_sizes_of_the_function():
    inner = sampler(2, 1, shuffle=False)

    batches = list(LoadBalancingDistributedBatchSampler(inner, growing))

    assert [len(each) for each in batches] == [1, 2, 3, 4, 5, 6, 7, 2]
    assert [index for batch in batches for index in batch] == list(inner)


def by_words(indices):
    """Batches of at most 64 words."""
    batches, room = [], 0
    for index in indices:
        if room < LENGTHS[index]:
            batches.append([])
            room = 64
        batches[-1].append(index)
        room -= LENGTHS[index]
    return batches


@pytest.mark.parametrize("drop_last", [False, True])
def test_all_ranks_take_as_many_batches(drop_last):
    made = [
        LoadBalancingDistributedBatchSampler(sampler(4, rank, seed=2), by_words, drop_last)
        for rank in range(4)
    ]
    counts = set()
    for epoch in range(8):
        for each in made:
            each.set_epoch(epoch)
        own = [len(by_words(list(each.sampler))) for each in made]
        counts.update(own)
        expected = min(own) if drop_last else max(own)
        assert [len(list(each)) for each in made] == [len(each) for each in made] == [expected] * 4
        for each, count in zip(made, own, strict=True):
            batches = list(each)
            assert batches[count:] == batches[: max(0, expected - count)]

    assert len(counts) > 1


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: sampler(3, 3), "rank is 3 and num_replicas 3"),
        (lambda: sampler(random_level=2), "random_level is 2"),
        (lambda: LoadBalancingDistributedSampler(LENGTHS, [1, 2], 2, 0), r"shape \(2,\) for 60 samples"),
        (lambda: sampler(lengths=np.array([1, np.nan, 3])), "complexity of sample 1 is nan"),
    ],
)
def test_what_cannot_be_dealt_is_refused(make, says):
    with pytest.raises(InvalidArgument, match=says):
        make()


def test_a_rank_without_a_batch_is_told():
    def none_for_some(indices):
        return [] if 0 in indices else [indices]

    found = LoadBalancingDistributedBatchSampler(sampler(2, shuffle=False), none_for_some)

    with pytest.raises(InvalidArgument, match=r"batches for ranks 0 to 1 in epoch 0; a rank without"):
        list(found)
