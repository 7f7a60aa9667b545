"""Fitted levels, chances, two means, 8-bit floats and frequencies against their closed forms."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from support.rows import probabilities

import rabit
import rabit.strategies as methods
from rabit.strategies.refit import best_levels, best_powers
from rabit.testing import run_ranks
from rabit.training.frequencies import cosines

GAUSS = np.random.default_rng(3).standard_normal((16, 8192))


def variance(table, blocks):
    """Of stochastic rounding to the levels of a table, over the square of the norm."""
    levels = np.array(table)
    scale = np.abs(blocks).max(axis=1, keepdims=True)
    part = np.abs(blocks) / scale
    low = np.clip(np.searchsorted(levels, part, side="right") - 1, 0, len(levels) - 2)
    lost = scale**2 * (levels[low + 1] - part) * (part - levels[low])
    return lost.sum() / (blocks**2).sum()


def histogram(blocks, bins=256):
    scale = np.abs(blocks).max(axis=1, keepdims=True)
    parts, weights = np.abs(blocks) / scale, np.broadcast_to(scale**2, blocks.shape)
    return np.histogram(parts.reshape(-1), bins, (0, 1), weights=weights.reshape(-1))[0]


def test_fitted_levels_have_the_variance_of_the_theory():
    counts = histogram(GAUSS)

    best, powers = (variance(fit(counts, 4), GAUSS) for fit in (best_levels, best_powers))

    assert variance(methods.uniform(3), GAUSS) == pytest.approx(0.290, abs=0.02)
    assert best == pytest.approx(0.160, abs=0.01)
    assert best <= powers * 1.005 and powers <= 1.35 * best


def test_fitted_levels_are_the_best_of_all():
    counts = np.random.default_rng(0).integers(0, 50, 10).astype(float)
    middle = (np.arange(10) + 0.5) / 10

    def cost(table):
        low = np.searchsorted(table, middle, side="right") - 1
        above, below = np.array(table)[low + 1], np.array(table)[low]
        return (counts * (above - middle) * (middle - below)).sum()

    found = best_levels(counts, 4)
    tables = [(0, a / 10, b / 10, 1) for a, b in itertools.combinations(range(1, 10), 2)]

    assert cost(found) == pytest.approx(min(map(cost, tables)), rel=1e-12)


def test_chances_have_the_density_and_the_variance_of_the_theory():
    x = GAUSS[0].astype(np.float32)
    generators = range(200)

    def on_rank(engine):
        sent = (
            rabit.allreduce(x, name="x", compression=rabit.Compression.by_chance(0.05), seed=seed)
            for seed in generators
        )
        return [(np.count_nonzero(each), (each.astype(np.float64) ** 2).sum()) for each in sent]

    counts, squares = zip(*run_ranks(1, on_rank)[0], strict=True)

    assert np.mean(counts) / x.size == pytest.approx(0.05, rel=1e-2)
    assert np.mean(squares) / (x.astype(np.float64) ** 2).sum() == pytest.approx(12.7, rel=0.05)
    assert np.all(probabilities(np.ones(100), 0.2) == pytest.approx(0.2))


@pytest.mark.parametrize("size", [1, 8, 64])
def test_frequencies_lose_nothing(size):
    basis = cosines(size)

    assert np.abs(basis @ basis.T - np.eye(size)).max() <= 4e-15


@pytest.mark.parametrize(("chunk", "count"), [(64, 8), (33, 40), (1, 1)])
def test_native_frequencies_are_those_of_numpy(chunk, count):
    """float32 in native code against float64 in NumPy, with a last chunk that is not full."""
    exchange = methods.FrequencyMomentum(0.9, chunk, count, signs=False)

    def on_rank(engine):
        found = []
        for kind in (np.float32, np.float64):
            noise = np.random.default_rng(engine.rank)
            zeros = {"w": np.zeros((7, 101), kind)}
            method = methods.Synchronous(exchange)
            trainer = methods.ArrayTrainer(zeros, method, lr=1.0, engine=engine, name=kind.__name__)
            for _ in range(4):
                trainer.step({"w": noise.standard_normal((7, 101)).astype(kind)})
            found.append((trainer.slots[0].grad, trainer.slots[0].state.m))
        return found

    for native, numpy in run_ranks(3, on_rank):
        for mine, other in zip(native, numpy, strict=True):
            assert mine.dtype == np.float32
            assert np.abs(mine - other).max() <= 1e-5


@pytest.mark.parametrize(("bits", "in_engine"), [(2, False), (3, True), (6, True), (7, False)])
@pytest.mark.parametrize("fit", ["best", "powers"])
def test_fitted_levels_are_rounded_to_by_the_engine_where_their_name_is_short(fit, bits, in_engine):
    block = 64

    def on_rank(engine):
        x = np.random.default_rng(engine.rank).standard_normal((16, 4 * block)).astype(np.float32)
        exchange = methods.FittedLevels(bits, block, first=0, every=1, fit=fit)
        trainer = methods.ArrayTrainer(
            {"w": np.zeros_like(x)}, methods.Synchronous(exchange), lr=1.0, engine=engine
        )
        trainer.step({"w": x})
        codecs = engine.statistics()["codecs"]
        return trainer.slots[0].state.table, trainer.slots[0].grad, [*codecs]

    found = run_ranks(2, on_rank)

    (table, values, codecs), (_, others, _) = found
    assert np.array_equal(values, others)
    assert any(each.startswith("levels") for each in codecs) == in_engine
    parts = np.abs(values.reshape(-1, block))
    parts = parts / parts.max(axis=1, keepdims=True)  # A sum is rounded as well, its largest to 1.
    assert np.abs(parts[..., None] - table).min(axis=-1).max() <= 1e-6
    assert np.array_equal(table * 65536, np.rint(table * 65536))
    assert (np.diff(table) >= 0).all() and (table[0], table[-1]) == (0, 1)


def test_a_table_of_levels_is_named_in_parts_of_65536():
    codec = rabit.Compression.levels(3, 64, (0, 1 / 3, 0.999999, 1))

    assert codec.spec == "levels:bits=3,block=64,levels=5555ffff,norm=max,phases=2"


LEVELS_OF_ACCORDION = {
    # gradients in each window of two steps, learning rate of each step: critical or not in each step
    "the first windows have nothing before them": ([1, 1, 1], [1] * 6, "yyyynn"),
    "a change by half is critical": ([1, 1, 1.6, 1.6], [1] * 8, "yyyynnyy"),
    "a change by less is not": ([1, 1, 1.4, 1.0], [1] * 8, "yyyynnnn"),
    "gradients of zero are critical": ([1, 0, 0, 0, 0], [1] * 10, "yyyyyyyyyy"),
    "a drop of the learning rate is, at once and for the window after it": (
        [1] * 5,
        [1] * 5 + [0.1] * 5,
        "yyyynyyynn",
    ),
    "where a window begins": ([1] * 4, [1, 1, 1, 1, 0.1, 0.1, 0.1, 0.1], "yyyyyynn"),
    "a rate that falls by a little each step is no drop": (
        [1] * 5,
        [0.9**step for step in range(10)],
        "yyyynnnnnn",
    ),
}


@pytest.mark.parametrize("name", LEVELS_OF_ACCORDION)
def test_accordion_decides_by_norms_of_windows_and_drops_of_the_learning_rate(name):
    norms, rates, expected = LEVELS_OF_ACCORDION[name]
    seen = []

    @dataclasses.dataclass(frozen=True)
    class Seen(methods.Mean):
        """The mean, and which of the two it is."""

        letter: str = ""

        async def __call__(self, x, state, ranks):
            seen.append((ranks.rank, self.letter))
            return await super().__call__(x, state, ranks)

    def on_rank(engine):
        exchange = methods.Accordion(Seen(letter="y"), Seen(letter="n"), interval=2)
        trainer = methods.ArrayTrainer(
            {"w": np.zeros(4)}, methods.Synchronous(exchange), lr=1.0, engine=engine
        )
        for step, rate in enumerate(rates):
            trainer.set_lr(rate)
            noise = 3.0 * (-1) ** engine.rank  # which no decision may follow
            trainer.step({"w": np.full(4, norms[step // 2] + noise)})

    run_ranks(2, on_rank)

    for rank in range(2):
        assert "".join(letter for at, letter in seen if at == rank) == expected


def test_levels_are_fitted_to_the_ranks_by_the_size_of_their_gradients():
    """What a block adds to the variance grows with the square of its largest entry, on whichever rank it is."""
    large = np.random.default_rng(1).standard_normal((8, 512))
    flat = np.random.default_rng(2).uniform(0.1, 0.2, (8, 512))
    flat[:, 0] = 1
    gradients = [1000 * large, flat]

    def on_rank(engine):
        exchange = methods.FittedLevels(3, 512, first=0)
        trainer = methods.ArrayTrainer(
            {"w": np.zeros((8, 512))}, methods.Synchronous(exchange), lr=1.0, engine=engine
        )
        trainer.step({"w": gradients[engine.rank]})
        return trainer.slots[0].state.table

    found = run_ranks(2, on_rank)

    expected = best_levels(histogram(np.concatenate(gradients)), 4)
    assert np.array_equal(*found)
    assert found[0] == pytest.approx(expected, abs=1e-4)
    assert not np.allclose(
        expected, best_levels(histogram(np.concatenate([large, 4 * flat])), 4), atol=0.02
    )
