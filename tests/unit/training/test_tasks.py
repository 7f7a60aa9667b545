"""Tasks and their Driver, on ranks that are threads."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import rabit
import rabit.strategies as methods
from rabit.framework import driver_of, finished
from rabit.testing import run_ranks


class Rounds(methods.Strategy):
    """Runs `body` after each step and keeps what it returns."""

    uses_step = True

    def __init__(self, body):
        self.body = body
        self.found = []

    async def after_step(self, ranks):
        self.found.append(await self.body(ranks))


def trained(engine, body, steps=1):
    strategy = Rounds(body)
    trainer = methods.ArrayTrainer({"w": np.zeros(1)}, strategy, lr=1.0, engine=engine)
    for _ in range(steps):
        trainer.step({"w": np.zeros(1)})
    trainer.pipeline.finish()
    return strategy.found


def run(size, body, steps=1):
    return run_ranks(size, lambda engine: trained(engine, body, steps), timeout=20)


def test_gather_brings_encodings_of_different_sizes_in_rank_order():
    async def body(ranks):
        return await ranks.gather((np.arange(ranks.rank), 1.5, (np.float32([[ranks.rank]]), True)))

    for ((found,),) in [run(3, body)[1:2]]:
        assert [len(each[0]) for each in found] == [0, 1, 2]
        assert [float(each[2][0][0, 0]) for each in found] == [0, 1, 2]
        assert found[0][1] == 1.5 and found[0][2][1] is True
        assert found[0][2][0].dtype == np.float32


def test_scatter_brings_each_rank_its_parts():
    async def body(ranks):
        return await ranks.scatter([np.full(peer, ranks.rank) for peer in range(ranks.size)])

    for rank, (found,) in enumerate(run(3, body)):
        assert [each.tolist() for each in found] == [[sender] * rank for sender in range(3)]


def test_sum_mean_max_and_flags():
    async def body(ranks):
        x = np.float64([ranks.rank, 1])
        flags = np.array([False, ranks.rank == 2, False])
        return [
            (await ranks.sum(x)).tolist(),
            (await ranks.mean(x)).tolist(),
            (await ranks.max(x)).tolist(),
            (await ranks.any(flags)).tolist(),
        ]

    for (found,) in run(3, body):
        assert found == [[3, 3], [1, 1], [2, 1], [False, True, False]]


def test_parts_of_a_mean_are_those_of_the_whole():
    async def body(ranks):
        part = await ranks.reduce_scatter(np.arange(7.0) + ranks.rank)
        return np.concatenate(await ranks.gather(part)).tolist()

    for (found,) in run(3, body):
        assert found == [each + 1.0 for each in range(7)]


def test_swap_reaches_the_neighbours_only():
    async def body(ranks):
        left, right = (ranks.rank - 1) % ranks.size, (ranks.rank + 1) % ranks.size
        return await ranks.swap(np.array([ranks.rank]), [left, right])

    for rank, (found,) in enumerate(run(4, body)):
        assert [int(each[0]) for each in found] == [(rank - 1) % 4, (rank + 1) % 4]


def test_a_wait_for_several_tasks_sleeps_until_any_goes_on():
    """Rank 1 answers the second task only once rank 0 sleeps for both, and the first only then."""
    sleeps = threading.Event()

    def on_rank(engine):
        def start(name):
            return engine.submit([rabit.Request(rabit.Kind.BARRIER, name)])

        if engine.rank == 1:
            answers = [sleeps.wait(20)]
            for name in ("second", "first"):
                start(name)[0].wait(20)
            return answers
        driver, wait_any, seen = driver_of(engine), engine.wait_any, []

        def watched(handles, timeout=None):
            seen.append(len(handles))
            sleeps.set()
            return wait_any(handles, timeout)

        engine.wait_any = watched
        handles = {name: start(name) for name in ("first", "second")}
        tasks = [driver.spawn(lambda task: finished(handles[task.name]), name) for name in handles]
        driver.wait(tasks, 20)
        return seen

    asleep, answers = run_ranks(2, on_rank, timeout=30)
    assert answers == [True]
    assert set(asleep) == {2}


def test_a_task_sleeps_for_steps_and_goes_on_at_the_same_step_everywhere():
    async def sleeper(ranks):
        await ranks.steps(2)
        return ranks.step, (await ranks.sum(np.array([ranks.step]))).tolist()

    started = []

    async def body(ranks):
        if ranks.step == 1:
            started.append(ranks.start(sleeper, name="sleeper"))
        return [each.is_done for each in started]

    for found in run_ranks(1, lambda engine: trained(engine, body, 4)):
        assert found == [[False], [False], [True], [True]]
    assert started[0].result == (3, [3])


def test_children_run_side_by_side_and_their_results_are_awaited():
    async def child(ranks):
        return float((await ranks.sum(np.ones(1)))[0])

    async def body(ranks):
        tasks = [ranks.start(child) for _ in range(3)]
        return [await each for each in reversed(tasks)]

    for (found,) in run(2, body):
        assert found == [2.0, 2.0, 2.0]


def test_an_error_reaches_the_one_who_awaits():
    async def child(ranks):
        await ranks.sum(np.ones(1))
        raise ValueError("no such level")

    async def body(ranks):
        try:
            return await ranks.start(child)
        except ValueError as error:
            return str(error)

    for (found,) in run(2, body):
        assert found == "no such level"


def test_an_error_that_nobody_awaits_is_raised_by_the_next_wait():
    async def child(ranks):
        raise ValueError("lost")

    async def body(ranks):
        ranks.start(child)

    with pytest.raises(ValueError, match="lost"):
        run(1, body)


def test_ranks_that_disagree_are_told_and_the_strategy_sees_it():
    async def body(ranks):
        try:
            await ranks.mean(np.ones(3 + ranks.rank))
        except rabit.Mismatch as error:
            return str(error)

    for (found,) in run(2, body):
        assert "'array.after.step'" in found


def test_tasks_that_wait_for_each_other_are_named():
    async def body(ranks):
        async def inner(_):
            return await outer[0]

        outer = [ranks.start(lambda r: r.steps(5))]
        return await ranks.start(inner)

    # The outer sleeps, so that the whole chain sleeps and the step ends.
    assert run(1, body) == [[]]


def test_a_second_start_of_a_task_in_flight_is_refused():
    async def endless(ranks):
        await ranks.sum(np.ones(1))

    async def body(ranks):
        first = ranks.start(endless, name="twice")
        try:
            ranks.start(endless, name="twice")
        except rabit.InvalidArgument as error:
            await first
            return str(error)

    ((found,),) = run(1, body)
    assert "'array.twice' on rank 0 is started a second time while it is in flight" in found


def test_within_a_process_set_rounds_have_numbers_of_their_own():
    def train(engine):
        pair = rabit.add_process_set([0, 1])

        async def body(ranks):
            found = 0.0
            if ranks.rank < 2:
                inner = ranks.within(pair)
                found = float((await inner.sum(np.ones(1)))[0])
                found += float((await inner.sum(np.ones(1)))[0])
            return found, float((await ranks.sum(np.ones(1)))[0])

        return trained(engine, body)

    assert run_ranks(3, train, timeout=20) == [[(4.0, 3.0)], [(4.0, 3.0)], [(0.0, 3.0)]]


def test_a_rank_outside_of_a_process_set_is_told():
    def train(engine):
        rest = rabit.add_process_set([0])
        if engine.rank == 0:
            return ""
        with pytest.raises(rabit.InvalidArgument) as caught:
            methods.ArrayTrainer(
                {"w": np.zeros(1)}, methods.LocalSGD(2), lr=1.0, engine=engine, process_set=rest
            )
        return str(caught.value)

    assert "rank 1 is not in the process set of ranks [0]" in run_ranks(2, train)[1]


def test_a_strategy_belongs_to_one_optimizer():
    def train(engine):
        strategy = methods.LocalSGD(2)
        methods.ArrayTrainer({"w": np.zeros(1)}, strategy, lr=1.0, engine=engine)
        with pytest.raises(rabit.InvalidArgument, match="is the strategy of 'array' already"):
            methods.ArrayTrainer({"w": np.zeros(1)}, strategy, lr=1.0, engine=engine)

    run_ranks(1, train)
