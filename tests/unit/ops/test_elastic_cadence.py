"""How many steps lie between two commits."""

from __future__ import annotations

import pytest

from rabit import InvalidArgument
from rabit.elastic import ElasticSampler, ObjectState, batches
from rabit.elastic.cadence import Cadence
from rabit.testing import run_ranks


class Training:
    """Steps and commits that take what they are said to take."""

    def __init__(self, step_s, commit_s, every=None):
        self.step_s, self.commit_s = step_s, commit_s
        self.now, self.step = 0.0, 0
        self.committed = []  # steps after which
        self.cadence = Cadence(every, clock=lambda: self.now)

    def run(self, steps):
        for _ in range(steps):
            self.step += 1
            self.now += self.step_s
            self.cadence.end_step(self._commit)
        return self.committed

    def _commit(self):
        self.now += self.commit_s
        self.committed.append(self.step)


def alone(fn):
    return run_ranks(1, lambda engine: fn())[0]


def test_a_given_number_of_steps_lies_between_commits():
    assert Training(0.01, 1.0, every=3).run(10) == [3, 6, 9]


def test_commits_take_a_thousandth_of_the_time_once_that_is_known():
    committed = alone(lambda: Training(0.011, 60e-6).run(30))

    assert committed == [*range(1, 9), 14, 20, 26]


def test_steps_that_take_long_beside_a_commit_are_all_committed():
    assert alone(lambda: Training(0.1, 60e-6).run(20)) == list(range(1, 21))


def test_however_long_a_commit_takes_no_more_than_half_a_minute_is_lost():
    assert alone(lambda: Training(10.0, 1.0).run(15)) == [*range(1, 9), 11, 14]


def test_what_changes_is_seen_later():
    def fn():
        training = Training(0.011, 60e-6)
        training.run(8 + 32 * 6)
        before, training.step_s = training.cadence.every, 0.06
        training.run(128 * before)
        return before, training.cadence.every

    assert alone(fn) == (6, 1)


def test_all_ranks_commit_as_rank_0_says():
    def fn(engine):
        return Training(0.01 * (1 + engine.rank), 48e-6 * (1 + 3 * engine.rank)).run(30)

    assert run_ranks(3, fn) == [[*range(1, 9), 13, 18, 23, 28]] * 3


def test_other_ranks_begin_alike():
    def fn():
        training = Training(0.01, 1e-3)
        training.run(8 + 40)
        training.cadence.start_over()
        return training.run(4)[-4:]

    assert alone(fn) == [49, 50, 51, 52]


def test_batches_are_committed_as_often_as_the_program_says():
    def fn(engine):
        sampler = ElasticSampler(range(64))
        state = ObjectState(sampler=sampler, steps=0)
        for batch in batches(sampler, state, batch_size=4, commit_every=3):
            with batch:
                state.steps += 1
        steps = state.steps
        state.restore()
        return steps, state._commits, state.steps

    assert run_ranks(2, fn) == [(8, 2, 6)] * 2


def test_a_cadence_that_is_none_is_told():
    def fn(engine):
        sampler = ElasticSampler(range(4))
        with pytest.raises(InvalidArgument, match="commit_every is 0: expected at least 1"):
            batches(sampler, ObjectState(sampler=sampler), batch_size=2, commit_every=0)

    run_ranks(1, fn)
