"""States and samplers of elastic jobs, without losses."""

from __future__ import annotations

import numpy as np
import pytest

import rabit
from rabit import InvalidArgument
from rabit.elastic import ElasticSampler, ObjectState, run
from rabit.testing import run_ranks


def test_a_state_goes_back_to_its_last_commit():
    state = ObjectState(step=3, weights=np.arange(4.0), names=["a"])
    state.commit()
    state.step = 9
    state.weights += 1
    state.names.append("b")

    state.restore()

    assert (state.step, state.names, state.commits) == (3, ["a"], 1)
    assert state.weights.tolist() == [0, 1, 2, 3]


def test_what_changes_after_a_restore_does_not_reach_the_commit():
    state = ObjectState(weights=np.zeros(2))
    for _ in range(2):
        state.restore()
        state.weights += 1

    state.restore()

    assert state.weights.tolist() == [0, 0]


def test_all_ranks_take_the_newest_commit():
    def fn(engine):
        state = ObjectState(step=engine.rank, weights=np.full(3, engine.rank))
        for _ in range(min(engine.rank, 2)):
            state.commit()
        state.sync()
        state.step = -1
        state.restore()
        return state.step, state.weights.tolist(), state.commits

    # Ranks 2 and 3 have two commits; the lower of them counts.
    assert run_ranks(4, fn) == [(2, [2, 2, 2], 2)] * 4


def test_reset_callbacks_run_in_their_order_after_the_values_have_adapted():
    state = ObjectState(step=0)
    seen = []
    state.register_reset_callbacks([lambda: seen.append("a"), lambda: seen.append("b")])

    state.on_reset()

    assert seen == ["a", "b"]


def taken(engine, sampler, batches, batch_size):
    found = []
    for _ in range(batches):
        sampler.reset()
        rows = list(sampler)[:batch_size]
        found += rows
        sampler.record_batch(0, batch_size)
    return found


@pytest.mark.parametrize("shuffle", [True, False])
def test_every_sample_comes_once_though_the_ranks_change(shuffle):
    def before(engine):
        sampler = ElasticSampler(range(48), shuffle=shuffle, seed=5)
        return taken(engine, sampler, 2, 4), sampler.state_dict()

    first = run_ranks(3, before)

    def after(engine):
        sampler = ElasticSampler(range(48), shuffle=shuffle, seed=5)
        sampler.load_state_dict(first[0][1])
        return taken(engine, sampler, 3, 4)

    rest = run_ranks(2, after)
    seen = [row for rows, _ in first for row in rows] + [row for rows in rest for row in rows]
    assert sorted(seen) == list(range(48))
    assert (seen != sorted(seen)) or not shuffle


def test_the_last_samples_come_twice_rather_than_not_for_all():
    def fn(engine):
        sampler = ElasticSampler(range(9), shuffle=False)
        sampler.load_state_dict({"epoch": 0, "processed_num": 8})
        return list(sampler), len(sampler)

    assert run_ranks(4, fn) == [([8], 1)] * 4


def test_an_epoch_that_is_through_has_nothing_left():
    def fn(engine):
        sampler = ElasticSampler(range(6))
        sampler.load_state_dict({"epoch": 0, "processed_num": 6})
        return list(sampler)

    assert run_ranks(2, fn) == [[], []]


def test_epochs_have_orders_of_their_own():
    def fn(engine):
        sampler = ElasticSampler(range(64))
        first = list(sampler)
        sampler.set_epoch(1)
        return first, list(sampler)

    (first, second), (other, _) = run_ranks(2, fn)
    assert first != second and not set(first) & set(other)


def test_run_calls_the_function_with_the_state_of_the_lowest_rank():
    @run
    def train(state, factor, *, plus):
        return state.step * factor + plus

    def fn(engine):
        return train(ObjectState(step=engine.rank + 5), 10, plus=1)

    assert run_ranks(3, fn) == [51, 51, 51]


def test_without_a_state_run_says_what_is_missing():
    def fn(engine):
        with pytest.raises(InvalidArgument, match="the first argument of train is int"):
            run(train)(3)

    def train(state):
        return state

    run_ranks(1, fn)


def test_an_error_in_a_job_that_is_not_elastic_is_raised():
    @run
    def train(state):
        raise rabit.PeerLost("rank 1 is gone", 1)

    def fn(engine):
        with pytest.raises(rabit.PeerLost, match="rank 1 is gone"):
            train(ObjectState(step=0))

    run_ranks(1, fn)
