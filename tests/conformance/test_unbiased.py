"""Mean and variance of every codec that rounds at random, of a million draws, against the closed form."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from support.recorded import recording_trainer
from support.rows import ROWS, probabilities

import rabit
import rabit.strategies as methods
from rabit import Compression
from rabit.testing import run_ranks

BLOCK, DRAWS = 16, 62_500  # A million in all.
ONE = np.random.default_rng(17).standard_normal(BLOCK) * np.geomspace(1e-3, 1, BLOCK)
Array = np.ndarray


def between(table: tuple[float, ...], norm: str = "max") -> Callable[[Array], Array]:
    """s²·(l₊ - r)(r - l₋) for r = |x|/s, which lies between two levels."""

    def variance(x: Array) -> Array:
        scale = np.abs(x).max() if norm == "max" else np.linalg.norm(x)
        levels, part = np.array(table), np.abs(x) / scale
        low = np.clip(np.searchsorted(levels, part, side="right") - 1, 0, len(levels) - 2)
        return scale**2 * (levels[low + 1] - part) * (part - levels[low])

    return variance


def between_powers(x: Array) -> Array:
    """(2^k₊ - |x|)(|x| - 2^k)"""
    low = np.exp2(np.floor(np.log2(np.abs(x))))
    return (2 * low - np.abs(x)) * (np.abs(x) - low)


def by_chance(ratio: float) -> Callable[[Array], Array]:
    """x²·(1/p - 1)"""
    return lambda x: x**2 * (1 / probabilities(np.abs(x), ratio) - 1)


def coded(codec: methods.Codec) -> Callable[[Array], Array]:
    """What a codec of NumPy makes of many copies of a block in a row, each with draws of its own."""
    generator = np.random.default_rng(23)
    return lambda x: codec.decode(codec.encode(x, lambda: generator), x)


def exchanged(exchange: methods.Exchange) -> Callable[[Array], Array]:
    """What an exchange makes of it on one rank."""

    def decoded(x: Array) -> Array:
        def on_rank(engine):
            trainer, found = recording_trainer(engine, exchange, x)
            trainer.step({"w": x})
            return found[0]

        return run_ranks(1, on_rank)[0]

    return decoded


def in_engine(compression: rabit.CompressionCodec) -> Callable[[Array], Array]:
    """In float32.  One rank's sum lies on the levels, so that encoding it once more changes nothing."""

    def decoded(x: Array) -> Array:
        def on_rank(engine):
            return rabit.allreduce(x.astype(np.float32), name="x", compression=compression, seed=5)

        return run_ranks(1, on_rank)[0].astype(np.float64)

    return decoded


def levels(table: tuple[float, ...], norm: str = "max") -> methods.Codec:
    return methods.Levels(table, BLOCK, norm)


# 4 bits of exponent, 3 of mantissa, over the largest: Micikevicius et al., 2022 (E4M3).
FLOATS = tuple(
    each / 448
    for each in [mantissa * 2.0**-9 for mantissa in range(8)]
    + [(1 + m / 8) * 2.0 ** (e - 7) for e in range(1, 16) for m in range(8)][:119]
)
FITTED = (0.0, 0.13, 0.41, 1.0)  # as alq and amq have them

# name: (what becomes of x, the variance of each entry)
UNBIASED: dict[str, tuple[Callable[[Array], Array], Callable[[Array], Array]]] = {
    **{
        f"qsgd, {bits} bits": (coded(levels(methods.uniform(bits))), between(methods.uniform(bits)))
        for bits in (2, 3, 8)
    },
    "qsgd, l2": (
        coded(levels(methods.uniform(4), "l2")),
        between(methods.uniform(4), "l2"),
    ),
    "nuqsgd": (coded(levels(methods.geometric(4))), between(methods.geometric(4))),
    "alq and amq": (coded(levels(FITTED)), between(FITTED)),
    "terngrad": (coded(levels((0.0, 1.0))), between((0.0, 1.0))),
    "randomk": (exchanged(methods.RandomK(0.25, scale=True)), lambda x: x**2 * (4 - 1)),
    "qsgd in the engine": (in_engine(Compression.levels(4, BLOCK)), between(methods.uniform(4))),
    "fp8 in the engine": (in_engine(Compression.fp8(BLOCK)), between(FLOATS)),
    "wangni in the engine": (in_engine(Compression.by_chance(0.3)), by_chance(0.3)),
    "natural in the engine": (in_engine(Compression.natural()), between_powers),
    "terngrad in the engine": (
        in_engine(Compression.levels(2, BLOCK, phases=1)),
        between((0.0, 1.0)),
    ),
    "nuqsgd in the engine": (
        in_engine(Compression.levels(4, BLOCK, "exponential")),
        between(methods.geometric(4)),
    ),
}


@pytest.mark.parametrize("name", UNBIASED)
def test_mean_and_variance_are_those_of_the_closed_form(name):
    decoded, variance = UNBIASED[name]

    draws = decoded(np.tile(ONE, DRAWS)).reshape(DRAWS, BLOCK)

    expected = variance(ONE)
    error = draws - ONE
    # The noise of float32 besides.
    tiny = 1e-6 * np.abs(ONE).max()
    assert np.all(np.abs(error.mean(axis=0)) <= 4 * np.sqrt(expected / DRAWS) + tiny)
    squares = error**2
    spread = squares.std(axis=0) / np.sqrt(DRAWS)
    assert np.all(np.abs(squares.mean(axis=0) - expected) <= 4 * spread + tiny**2)


@pytest.mark.parametrize("name", methods.available())
def test_a_method_that_rounds_at_random_has_its_codecs_here(name):
    found = ROWS[name].rounding

    assert isinstance(found, str) or (found and set(found) <= set(UNBIASED))
