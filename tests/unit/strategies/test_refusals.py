"""What methods refuse when they are made, with the reason."""

from __future__ import annotations

import math

import numpy as np
import pytest
from support.recorded import recording_trainer

import rabit
import rabit.strategies as methods
from rabit import Compression
from rabit.testing import run_ranks

MEAN = methods.Mean()
L2 = methods.Levels(methods.uniform(3), 512, "l2")
NOISY = {
    "levels by L2": methods.TwoPhase(L2),
    "levels by L2 in the engine": methods.InEngine(Compression.levels(3, norm="l2")),
    "three values in the engine": methods.InEngine(Compression.levels(2, phases=1)),
    "three values": methods.Gathered(methods.Levels((0.0, 1.0))),
    "entries by chance": methods.InEngine(Compression.by_chance(0.1)),
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
        methods.InEngine(Compression.levels(4)),
    ):
        assert methods.ErrorFeedback(exchange).inner == exchange


EVERY = "takes a whole number from 1 on"
OUT_OF_RANGE = {
    "Accordion(interval=0)": (lambda: methods.Accordion(MEAN, MEAN, interval=0), EVERY),
    "Accordion(drop=2.0)": (lambda: methods.Accordion(MEAN, MEAN, drop=2.0), "a number in [0, 1]"),
    "AnyBatchMirrorDescent(rounds=0)": (lambda: methods.AnyBatchMirrorDescent(rounds=0), EVERY),
    "AnyBatchMirrorDescent(graph='star')": (
        lambda: methods.AnyBatchMirrorDescent(graph="star"),
        "graph takes 'ring' or 'all'",
    ),
    "Bypass(below_bytes=-1)": (lambda: methods.Bypass(MEAN, -1), "a whole number from 0 on"),
    "chance(ratio=0)": (lambda: methods.InEngine(Compression.by_chance(0)), "a number in (0, 1]"),
    "Clipped(deviations=0)": (lambda: methods.Clipped(MEAN, 0), "a number in (0, inf]"),
    "Clipped(deviations=nan)": (lambda: methods.Clipped(MEAN, math.nan), "in (0, inf]"),
    "Deadline(seconds=0)": (lambda: methods.Deadline(0), "a number in (0, inf)"),
    "Decentralized(every=0)": (lambda: methods.Decentralized(every=0), EVERY),
    "Decentralized(peers='some')": (
        lambda: methods.Decentralized("some"),
        "peers takes 'all' or 'shift-one'",
    ),
    "ErrorFeedback(decay=1.5)": (lambda: methods.ErrorFeedback(MEAN, 1.5), "a number in [0, 1]"),
    "Euclidean(radius=-1)": (lambda: methods.Euclidean(-1), "a number in [0, inf)"),
    "FittedLevels(bits=8)": (lambda: methods.FittedLevels(bits=8), "from 2 to 7"),
    "FittedLevels(fit='most')": (
        lambda: methods.FittedLevels(fit="most"),
        "fit takes 'best' or 'powers'",
    ),
    "FrequencyMomentum(chunk=0)": (lambda: methods.FrequencyMomentum(chunk=0), "from 1 to 65536"),
    "FrequencyMomentum(momentum=1.0)": (
        lambda: methods.FrequencyMomentum(1.0),
        "a number in [0, 1)",
    ),
    "Gathered(seed=-1)": (lambda: methods.Gathered(methods.MinMax8(), -1), "from 0 on"),
    "Gossip(every=0)": (lambda: methods.Gossip(every=0), EVERY),
    "Gossip(graph='star')": (lambda: methods.Gossip("star"), "graph takes 'ring' or 'all'"),
    "Hierarchical(island=-1)": (lambda: methods.Hierarchical(MEAN, -1), "from 0 on"),
    "LargestEntries(ratio=1.5)": (lambda: methods.LargestEntries(1.5), "a number in (0, 1]"),
    "Levels(block=0)": (lambda: methods.Levels((0.0, 1.0), 0), EVERY),
    "Levels(norm='l1')": (
        lambda: methods.Levels((0.0, 1.0), norm="l1"),
        "norm takes 'max' or 'l2'",
    ),
    "LocalMomentum(rate=0.0)": (lambda: methods.LocalMomentum(MEAN, 0.0), "a number in (0, 1]"),
    "LocalSGD(every=0)": (lambda: methods.LocalSGD(0), EVERY),
    "LocalSGD(every=True)": (lambda: methods.LocalSGD(True), EVERY),
    "LocalSGD(every=2.5)": (lambda: methods.LocalSGD(2.5), EVERY),
    "LocalSGD(delay=4)": (lambda: methods.LocalSGD(4, delay=4), "from 0 to 3"),
    "LocalSGD(fragments=5)": (lambda: methods.LocalSGD(4, fragments=5), "from 1 to 4"),
    "LocalSGD(mix=1.0)": (lambda: methods.LocalSGD(4, mix=1.0), "a number in [0, 1)"),
    "LowPrecisionRing(every=0)": (lambda: methods.LowPrecisionRing(every=0), EVERY),
    "MinMax8(block='8')": (lambda: methods.MinMax8("8"), EVERY),
    "MomentumCorrection(momentum=1)": (
        lambda: methods.MomentumCorrection(MEAN, 1),
        "a number in [0, 1)",
    ),
    "Nesterov(lr=0)": (lambda: methods.Nesterov(0), "a number in (0, inf)"),
    "OneBitAdam(warmup=0)": (lambda: methods.OneBitAdam(MEAN, 0), EVERY),
    "OneBitAdam(betas[1]=1.0)": (
        lambda: methods.OneBitAdam(MEAN, 9, (0.9, 1.0)),
        "a number in [0, 1)",
    ),
    "OneBitLamb(eps=0)": (lambda: methods.OneBitLamb(MEAN, 9, eps=0), "a number in (0, inf)"),
    "Phases(until=-1)": (lambda: methods.Phases(-1, MEAN), "from 0 on"),
    "PowerSGD(rank=0)": (lambda: methods.PowerSGD(0), EVERY),
    "RandomK(ratio=0)": (lambda: methods.RandomK(0), "a number in (0, 1]"),
    "sign(block=0)": (lambda: methods.InEngine(Compression.sign(0)), EVERY),
    "SlowMomentum(beta=1)": (lambda: methods.SlowMomentum(beta=1), "a number in [0, 1)"),
    "means(block=-8)": (lambda: methods.InEngine(Compression.two_means(-8)), EVERY),
    "ZeroOneAdam(grow=0)": (lambda: methods.ZeroOneAdam(MEAN, 9, grow=0), EVERY),
    "geometric(bits=9)": (lambda: methods.geometric(9), "from 2 to 8"),
    "losing_links(chance=2)": (lambda: methods.losing_links("ring", 4, 2), "a number in [0, 1]"),
    "uniform(bits=1)": (lambda: methods.uniform(1), "from 2 to 8"),
}


@pytest.mark.parametrize("what", OUT_OF_RANGE)
def test_an_argument_that_cannot_be_is_refused_with_its_range(what):
    make, says = OUT_OF_RANGE[what]

    with pytest.raises(rabit.InvalidArgument) as refusal:
        make()

    assert str(refusal.value).startswith(f"{what}: ") and says in str(refusal.value)


def test_levels_that_do_not_rise_from_0_to_1_are_refused():
    with pytest.raises(rabit.InvalidArgument, match="rise from 0 to 1"):
        methods.Levels((0.0, 0.5))
