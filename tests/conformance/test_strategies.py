"""Every gradient method on ranks that are threads of this process."""

from __future__ import annotations

import dataclasses
import time

import numpy as np
import pytest
from support import strategy_suite as suite
from support.recorded import recording_trainer

import rabit
import rabit.strategies as methods
from rabit.testing import run_ranks

RANKS = 3
_found: dict[int, list[suite.Outcome]] = {}


def outcomes(run: suite.Run, ranks: int = RANKS) -> list[suite.Outcome]:
    # From run to run ranks may sum in another order otherwise, and bits are compared here.
    return run_ranks(ranks, run, timeout=30, deterministic=True)


def outcomes_of_reference(run: suite.Run) -> list[suite.Outcome]:
    if id(run) not in _found:
        _found[id(run)] = outcomes(run)
    return _found[id(run)]


@pytest.mark.parametrize("name", suite.EQUIVALENCES)
def test_equals(name):
    method, reference = suite.EQUIVALENCES[name]

    assert suite.distance(outcomes(method), outcomes_of_reference(reference)) <= 1e-12


@pytest.mark.parametrize("name", suite.CONSERVING)
def test_what_is_not_sent_is_sent_later_also_when_the_learning_rate_falls_or_is_zero(name):
    run = suite.Run(suite.every(suite.CONSERVING[name]), lr=suite.rate, gradient=suite.pure_noise)

    assert suite.unconserved(outcomes(run), run) <= 1e-12


@pytest.mark.parametrize("name", suite.TOGETHER)
def test_ranks_stay_together_and_states_can_be_saved_and_taken_back(name):
    assert_stays_together(suite.Run(suite.TOGETHER[name]))


@pytest.mark.parametrize("name", suite.TOGETHER_IN_ENGINE)
def test_ranks_stay_together_where_the_engine_encodes(name):
    assert_stays_together(suite.Run(suite.TOGETHER_IN_ENGINE[name], dtype=np.float32))


def assert_stays_together(run):
    plain = outcomes(run)

    assert suite.spread(plain) == 0
    assert suite.distance(plain, outcomes_of_reference(suite.MEAN)) < 3
    assert suite.distance(plain, outcomes(dataclasses.replace(run, reloads=6))) == 0
    if not run.method().uses_step:
        assert suite.distance(plain, outcomes(dataclasses.replace(run, skips=5))) == 0
    assert suite.distance(plain, outcomes(dataclasses.replace(run, reverses=True))) == 0
    assert suite.distance(plain, outcomes(dataclasses.replace(run, replaced=True))) == 0


@pytest.mark.parametrize("name", suite.SAME)
def test_the_engine_and_numpy_send_the_same(name):
    native, reference = suite.SAME[name]

    found = outcomes(suite.Run(native, dtype=np.float32))
    expected = outcomes(suite.Run(reference, dtype=np.float32))

    assert suite.distance(found, expected) <= 1e-5


@pytest.mark.parametrize(
    "exchange",
    [suite.NATIVE_TOPK, suite.NATIVE_SIGNS, suite.NATIVE_TWO_PHASES, suite.NATIVE_TWO_MEANS],
    ids=["topk", "sign", "sign in two phases", "two means"],
)
@pytest.mark.parametrize("later", [0, 1], ids=["by itself", "in a coroutine"])
def test_the_engine_loses_nothing_when_the_learning_rate_falls_or_is_zero(exchange, later):
    if later:
        exchange = methods.Phases(0, exchange)
    run = suite.Run(
        suite.feedback(exchange), lr=suite.rate, gradient=suite.pure_noise, dtype=np.float32
    )

    assert suite.unconserved(outcomes(run), run) <= 1e-5


def test_momentum_that_waits_is_sent_later_also_when_the_learning_rate_falls_or_is_zero():
    """Σ η·x' + mean(η·v) = Σ η·mean(u), u = 0.9·u + g."""
    exchange = methods.MomentumCorrection(suite.topk(0.2), momentum=0.9, masks=False)
    run = suite.Run(suite.every(exchange), lr=suite.rate, gradient=suite.pure_noise)

    found = outcomes(run)

    for name in suite.SHAPES:
        u, whole = np.zeros(suite.SHAPES[name]), np.zeros(suite.SHAPES[name])
        for step in range(run.steps):
            u = 0.9 * u + np.mean([suite.noise(name, rank, step) for rank in range(RANKS)], axis=0)
            whole += suite.rate(step) * u
        moved = found[0].first[name] - found[0].values[name]
        states = [each.states[name] for each in found]
        left = np.mean([each.v * each.unit for each in states], axis=0)
        assert np.abs(moved + left - whole).max() <= 1e-12


UNBIASED = {
    "qsgd": (methods.uniform, "uniform"),
    "nuqsgd": (methods.geometric, "exponential"),
}


@pytest.mark.parametrize("name", UNBIASED)
def test_levels_of_the_engine_and_of_numpy_have_one_mean_and_variance(name):
    table, levels = UNBIASED[name]
    numpy_codec = methods.TwoPhase(methods.Levels(table(3), 32))
    native = methods.InEngine(rabit.Compression.levels(3, 32, levels))
    gradient = np.random.default_rng(5).standard_normal((8, 8)).astype(np.float32)

    def decoded(exchange):
        def on_rank(engine):
            trainer, found = recording_trainer(engine, exchange, gradient)
            for _ in range(600):
                trainer.step({"w": gradient})
            return np.array(found, np.float64)

        return run_ranks(1, on_rank, timeout=30)[0]

    draws, reference = decoded(native), decoded(numpy_codec)
    error = np.abs(draws.mean(axis=0) - gradient)

    assert np.all(error <= 4 * draws.std(axis=0) / np.sqrt(len(draws)) + 1e-6)
    assert np.isclose(draws.var(axis=0).sum(), reference.var(axis=0).sum(), rtol=0.1)


def test_eight_bits_of_the_engine_and_of_numpy_are_within_a_step():
    numpy_codec = methods.TwoPhase(methods.MinMax8(32))
    native = methods.InEngine(rabit.Compression.minmax8(32))

    found, expected = (
        run_ranks(1, suite.Run(suite.every(each), steps=1, dtype=np.float32), timeout=30)
        for each in (native, numpy_codec)
    )

    assert suite.distance(found, expected) <= 0.1 * 8 / 255


@pytest.mark.parametrize("name", suite.APART)
def test_saved_states_of_ranks_that_are_apart_go_on_bit_for_bit(name):
    """As the run that saved: to save, what is under way is brought in, which is a step otherwise."""
    run = suite.Run(suite.APART[name], steps=11)

    saved, loaded = (
        outcomes(dataclasses.replace(run, **{what: 6}), 4) for what in ("saves", "reloads")
    )

    assert suite.distance(saved, loaded) == 0


CUTS = [
    {"partition_bytes": 64},
    {"fusion_bytes": 0},
    {"lanes": 1},
    {"scheduler": "fifo"},
]
CUT_RUNS = {
    **{name: suite.Run(make) for name, make in {**suite.TOGETHER, **suite.APART}.items()},
    **{
        f"{name} in the engine": suite.Run(make, dtype=np.float32)
        for name, make in suite.TOGETHER_IN_ENGINE.items()
    },
}


@pytest.mark.parametrize("name", CUT_RUNS)
def test_no_bit_depends_on_how_the_engine_cuts_joins_orders_and_shares_out(name):
    run = CUT_RUNS[name]
    plain = outcomes(run, 4)

    for settings in CUTS:
        other = run_ranks(4, run, timeout=30, deterministic=True, **settings)
        assert suite.distance(plain, other) == 0, settings


def test_streaming_fragments_keep_anchors_equal():
    run = suite.Run(
        lambda: methods.LocalSGD(4, methods.Nesterov(), fragments=2, delay=2, mix=0.5), steps=14
    )

    found = outcomes(run)

    assert suite.spread(found, lambda each, name: each.states[name].anchor) == 0
    assert suite.spread(found) > 0


def test_sparse_moves_keep_anchors_equal():
    exchange = methods.ErrorFeedback(suite.topk(0.1), 0.9)

    found = outcomes(suite.Run(lambda: methods.LocalSGD(4, exchange=exchange)))

    assert suite.spread(found, lambda each, name: each.states[name].anchor) == 0


def test_one_rank_trains_without_peers():
    run = suite.Run(lambda: methods.Decentralized("shift-one"))

    assert suite.distance(outcomes(run, 1), outcomes(suite.MEAN, 1)) <= 1e-12


def test_peers_one_at_a_time_come_to_one_value():
    run = suite.Run(
        lambda: methods.Decentralized("shift-one"), steps=24, gradient=suite.nothing, apart=1.0
    )

    assert suite.spread(outcomes(run, 4)) < 1e-3


def test_a_ring_in_eight_bits_stays_together():
    run = suite.Run(lambda: methods.LowPrecisionRing(), steps=30)

    assert 0 < suite.spread(outcomes(run)) < 0.5


def test_an_average_that_nobody_waits_for_brings_ranks_together():
    run = suite.Run(methods.AsyncAverage, steps=20, gradient=suite.nothing, apart=1.0)

    assert suite.spread(outcomes(run)) < 1.0  # 2 without


@pytest.mark.parametrize("make", [methods.AnyBatch, methods.AnyBatchMirrorDescent])
def test_any_batch_is_the_step_on_the_union_of_the_samples(make):
    def train(engine):
        method, w = make(), np.ones(3)
        trainer = methods.ArrayTrainer({"w": w}, method, lr=1.0, engine=engine)
        method.samples = engine.rank  # none on rank 0
        trainer.step({"w": np.full(3, float(sum(range(engine.rank))))})
        return w

    union = 1.0 - (0 + 0 + 1) / 3

    assert all(np.allclose(each, union, atol=1e-15) for each in run_ranks(3, train))


def test_gossip_keeps_the_mean_and_shrinks_the_distance_by_the_second_eigenvalue():
    run = suite.Run(
        lambda: methods.Gossip("ring", rounds=2), steps=3, gradient=suite.nothing, apart=1.0
    )

    found = outcomes(run, 4)

    firsts, lasts = (
        np.array([getattr(each, name)["w"] for each in found]) for name in ("first", "values")
    )
    assert np.abs(lasts.mean(axis=0) - firsts.mean(axis=0)).max() <= 1e-12
    before, after = (np.linalg.norm(each - each.mean(axis=0)) for each in (firsts, lasts))
    assert after <= before / 3**6 * (1 + 1e-9)  # Of a ring of 4 the eigenvalue is 1/3.


def test_a_graph_that_names_a_neighbour_on_one_side_is_refused():
    def on_rank(engine):
        method = methods.Gossip({0: [1], 1: []})
        trainer = methods.ArrayTrainer({"w": np.zeros(2)}, method, lr=0.1, engine=engine)
        with pytest.raises(rabit.InvalidArgument, match="has 1 as a neighbour of rank 0, and not"):
            trainer.step({"w": np.zeros(2)})

    run_ranks(2, on_rank)


def test_asynchronous_averages_pause_when_all_have_asked_and_resume():
    def on_rank(engine):
        method, w = methods.AsyncAverage(), np.full(3, float(engine.rank))
        trainer = methods.ArrayTrainer({"w": w}, method, lr=1.0, engine=engine)
        nothing = {"w": np.zeros(3)}
        for _ in range(engine.rank + 3):  # Ranks are at different steps.
            trainer.step(nothing)
        for _ in range(2):
            method.pause()
            deadline = time.monotonic() + 20
            while not method.is_paused and time.monotonic() < deadline:
                trainer.step(nothing)
            assert method.is_paused
            started = method._started
            trainer.step(nothing)
            assert method._started == started
            method.resume()
            trainer.step(nothing)
            assert method._started == started + 1
        trainer.pipeline.finish()
        return w

    found = run_ranks(3, on_rank, timeout=60)

    assert np.abs(np.mean(found, axis=0) - 1.0).max() <= 1e-12  # The mean of the ranks stays.
    assert np.ptp(found, axis=0).max() < 1.0  # 2 before
