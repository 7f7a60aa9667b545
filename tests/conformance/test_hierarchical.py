"""Exchanges between islands of ranks."""

from __future__ import annotations

import numpy as np
import pytest
from support import strategy_suite as suite

import rabit
import rabit.strategies as methods
from rabit.testing import run_ranks


def outcomes(run: suite.Run, ranks: int = 4) -> list[suite.Outcome]:
    return run_ranks(ranks, run, timeout=30, deterministic=True)


@pytest.mark.parametrize("island", [1, 2, 4])
def test_the_mean_of_islands_means_is_the_mean(island):
    hierarchy = suite.Run(suite.every(methods.Hierarchical(methods.Mean(), island)))

    assert suite.distance(outcomes(hierarchy), outcomes(suite.MEAN)) <= 1e-12


def test_ranks_of_one_host_are_an_island():
    hierarchy = suite.Run(suite.every(methods.Hierarchical(suite.topk(0.1))))

    assert suite.distance(outcomes(hierarchy), outcomes(suite.MEAN)) <= 1e-12


@pytest.mark.parametrize("exchange", [suite.topk(0.1), suite.power(1)], ids=["topk", "powersgd"])
def test_what_islands_do_not_send_is_sent_later(exchange):
    run = suite.Run(
        suite.feedback(methods.Hierarchical(exchange, 2)),
        lr=lambda step: 0.1 if step < 4 else 0.01,
        gradient=suite.pure_noise,
    )

    found = outcomes(run)

    assert suite.spread(found) == 0
    assert suite.unconserved(found, run) <= 1e-12
    assert suite.distance(found, outcomes(suite.with_gradient(suite.MEAN, suite.pure_noise))) > 0.01


def test_a_saved_state_of_islands_goes_on_bit_for_bit():
    def run(reloads: int) -> suite.Run:
        inner = methods.ErrorFeedback(suite.power(1))
        return suite.Run(suite.every(methods.Hierarchical(inner, 2)), reloads=reloads)

    assert suite.distance(outcomes(run(5)), outcomes(run(-1))) == 0


def test_between_islands_a_rank_sends_the_rows_of_its_place():
    seen = {}

    class Watched(methods.Mean):
        async def __call__(self, x, state, ranks):
            seen[ranks.engine.rank] = (x.shape, ranks.size, float(x.mean()))
            return await super().__call__(x, state, ranks)

    def on_rank(engine):
        exchange = methods.Hierarchical(Watched(), 2)
        trainer = methods.ArrayTrainer(
            {"w": np.zeros((5, 3))}, methods.Synchronous(exchange), lr=1.0, engine=engine
        )
        trainer.step({"w": np.full((5, 3), float(engine.rank))})
        return trainer.slots[0].value.copy()

    found = run_ranks(4, on_rank)

    assert seen == {
        0: ((3, 3), 2, 0.5),
        1: ((2, 3), 2, 0.5),
        2: ((3, 3), 2, 2.5),
        3: ((2, 3), 2, 2.5),
    }
    assert all(np.array_equal(each, np.full((5, 3), -1.5)) for each in found)


def test_islands_of_several_sizes_are_refused():
    def on_rank(engine):
        with pytest.raises(rabit.InvalidArgument, match=r"islands of \[2, 1\] ranks"):
            suite.Run(suite.every(methods.Hierarchical(methods.Mean(), 2)))(engine)

    run_ranks(3, on_rank)
