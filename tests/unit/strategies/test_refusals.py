"""What methods refuse when they are made, with the reason."""

from __future__ import annotations

import numpy as np
import pytest
from support.recorded import recording_trainer

import rabit
import rabit.strategies as methods
from rabit import Compression
from rabit.testing import run_ranks

L2 = methods.Levels(methods.uniform(3), 512, "l2")
NOISY = {
    "levels by L2": methods.TwoPhase(L2),
    "levels by L2 in the engine": methods.InEngine(
        Compression.levels(3, norm="l2"), methods.TwoPhase(methods.Levels(methods.uniform(3)))
    ),
    "three values": methods.Gathered(methods.Levels((0.0, 1.0))),
    "entries by chance": methods.Gathered(methods.ByChance(0.1)),
    "entries at random, scaled": methods.RandomK(0.1, scale=True),
    "within another": methods.Phases(3, methods.Hierarchical(methods.TwoPhase(L2))),
}


@pytest.mark.parametrize("name", NOISY)
def test_a_residual_that_would_grow_is_refused(name):
    with pytest.raises(rabit.InvalidArgument, match="residual would grow without end"):
        methods.ErrorFeedback(NOISY[name])


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_what_is_refused_grows_indeed():
    """Levels by L2 of one large block: e = p - sent is larger than p, step by step."""
    exchange = methods.Gathered(methods.Levels(methods.uniform(2), 4096, "l2"))

    def train(engine):
        x = np.random.default_rng(3).standard_normal(4096)
        residual, sizes = np.zeros_like(x), []
        trainer, found = recording_trainer(engine, exchange, x)
        for _ in range(6):
            trainer.step({"w": x + residual})
            residual = x + residual - found[-1]
            sizes.append(np.linalg.norm(residual))
        return sizes

    (sizes,) = run_ranks(1, train)

    assert sizes[-1] > 100 * sizes[0]


def test_what_loses_less_than_it_is_given_may_have_a_residual():
    for exchange in (
        methods.TwoPhase(methods.Levels(methods.uniform(4))),
        methods.RandomK(0.1),
        methods.InEngine(
            Compression.levels(4), methods.TwoPhase(methods.Levels(methods.uniform(4)))
        ),
    ):
        assert methods.ErrorFeedback(exchange).inner == exchange


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: methods.LocalSGD(0), "every >= 1"),
        (lambda: methods.LocalSGD(4, delay=4), "delay < every"),
        (lambda: methods.LocalSGD(4, fragments=5), "fragments <= every"),
        (lambda: methods.OneBitAdam(methods.Mean(), 0), "warmup is 0"),
        (lambda: methods.FittedLevels(bits=8), "2 to 7 bits"),
        (lambda: methods.Levels((0.0, 0.5)), "rise from 0 to 1"),
        (lambda: methods.Decentralized("some"), "peers is 'some'"),
        (lambda: methods.as_strategy("topk:ratio=much"), "float such as"),
    ],
)
def test_numbers_that_cannot_be_are_refused(make, says):
    with pytest.raises(rabit.InvalidArgument, match=says):
        make()
