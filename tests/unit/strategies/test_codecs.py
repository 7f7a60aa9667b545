"""Codecs of methods: what they lose and what they keep."""

from __future__ import annotations

import numpy as np
import pytest

import rabit
import rabit.strategies as methods
from rabit.training.encoding import pack

SIZES = [0, 1, 7, 511, 512, 513, 1300]
CODECS = {
    "top-k": methods.LargestEntries(0.1),
    "qsgd": methods.Levels(methods.uniform(4), 64),
    "nuqsgd": methods.Levels(methods.geometric(3), 64, norm="l2"),
    "terngrad": methods.Levels((0.0, 1.0), 64),
    "min-max": methods.MinMax8(64),
}


def randoms(seed=0):
    generator = np.random.default_rng(seed)
    return lambda: generator


def sample(count, dtype="float64"):
    return np.random.default_rng(count).standard_normal(count).astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", CODECS)
def test_sizes_and_types_come_back(name, dtype):
    codec = CODECS[name]

    for count in SIZES:
        x = sample(count, dtype)
        found = codec.decode(codec.encode(x, randoms()), x)
        assert found.shape == x.shape and found.dtype == x.dtype
        assert np.all(np.isfinite(found))


@pytest.mark.parametrize(
    "name", [n for n, codec in CODECS.items() if not codec.is_biased and n != "min-max"]
)
def test_an_unbiased_codec_is_right_in_the_mean(name):
    codec, x, draws = CODECS[name], sample(256), 400
    random = randoms(1)

    found = [codec.decode(codec.encode(x, random), x) for _ in range(draws)]

    expected = np.sqrt(np.var(found, axis=0).sum() / draws)
    assert np.linalg.norm(np.mean(found, axis=0) - x) < 1.3 * expected


def test_top_k_keeps_the_largest_and_breaks_ties_by_place():
    codec = methods.LargestEntries(0.5)

    places, values = codec.encode(np.float64([1, -3, 3, 3]), randoms())
    assert places.tolist() == [1, 2] and values.tolist() == [-3, 3]
    assert codec.encode(np.ones(4), randoms())[0].tolist() == [0, 1]


@pytest.mark.parametrize("level", [0.25, 0.5, 1.0])
def test_values_on_a_level_come_back_as_they_are(level):
    x = np.float64([1.0, -level, 0.0])

    codec = methods.Levels(methods.geometric(4))
    assert codec.decode(codec.encode(x, randoms()), x).tolist() == x.tolist()


@pytest.mark.parametrize(
    ("name", "bits"),
    [("qsgd", 4.6), ("nuqsgd", 3.6), ("min-max", 9.1)],
)
def test_bits_of_an_entry(name, bits):
    x = sample(1 << 14, "float32")

    assert pack(CODECS[name].encode(x, randoms())).nbytes * 8 / x.size <= bits + 0.1


def test_the_variance_of_levels_falls_with_their_square():
    x, random = sample(4096), randoms(3)

    def error(levels):
        codec = methods.Levels(tuple(np.linspace(0, 1, levels)))
        return np.mean(
            [np.sum((codec.decode(codec.encode(x, random), x) - x) ** 2) for _ in range(8)]
        )

    slope = np.log(error(128) / error(8)) / np.log(127 / 7)
    assert abs(slope + 2) < 0.05


@pytest.mark.parametrize("name", ["qsgd", "min-max"])
def test_an_infinity_does_not_pass_for_a_number(name):
    x = sample(100)
    x[3] = np.inf

    with np.errstate(all="ignore"):
        found = CODECS[name].decode(CODECS[name].encode(x, randoms()), x)

    assert not np.all(np.isfinite(found))


@pytest.mark.parametrize(
    "table", [(0.0,), (0.5, 1.0), (0.0, 0.5), (0.0, 0.7, 0.5, 1.0), (0.0,) * 200]
)
def test_a_table_that_is_none_is_refused(table):
    with pytest.raises(rabit.InvalidArgument, match="rise from 0 to 1"):
        methods.Levels(table)


@pytest.mark.parametrize("bits", range(1, 9))
def test_packed_bits_come_back(bits):
    for count in (0, 1, 7, 8, 9, 1000):
        codes = np.random.default_rng(count).integers(0, 1 << bits, count)
        packed = methods.pack_bits(codes, bits)
        assert packed.size == -(-count * bits // 8)
        assert methods.unpack_bits(packed, bits, count).tolist() == codes.tolist()


@pytest.mark.parametrize("deviations", [2.5, np.inf])
@pytest.mark.parametrize("scale", [0.0, 1e-30, 1.0, 1e30])
def test_clipping_cuts_the_same_entries_whatever_their_size(scale, deviations):
    class Kept(methods.Mean):
        async def __call__(self, x, state, ranks):
            return x

    x = sample(512, "float32")
    x[7] = 100.0

    found, wanted = (
        methods.Clipped(Kept(), deviations)(x * np.float32(by), None, None) for by in (scale, 1.0)
    )

    assert np.allclose(result_of(found), result_of(wanted) * np.float32(scale), rtol=1e-5, atol=0)


def result_of(coroutine):
    """Of one that waits for nothing."""
    with pytest.raises(StopIteration) as ended:
        coroutine.send(None)
    return ended.value.value
