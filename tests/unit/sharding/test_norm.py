"""The norm has the same bits for every division of the elements, and is right."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from rabit.sharding import SquareSum


def norm_of(parts):
    digits = 0
    for part in parts:
        squares = SquareSum()
        squares.add(part)
        digits = digits + squares.digits()
    return SquareSum.root(digits)


def values(seed, count=64 * 977 + 13):
    random = np.random.default_rng(seed)
    return (random.standard_normal(count) * 10.0 ** random.uniform(-9, 9, count)).astype(np.float32)


@pytest.mark.parametrize("seed", range(3))
def test_the_bits_do_not_depend_on_the_number_of_parts(seed):
    whole = values(seed)
    expected = norm_of([whole])

    for parts in (2, 3, 4, 7, 8):
        cuts = [64 * (977 * part // parts) for part in range(1, parts)]
        assert norm_of(np.split(whole, cuts)) == expected


def test_tensors_of_a_flat_and_tensors_alone_have_one_norm():
    first, second = values(1, 100), values(2, 200)
    flat = np.zeros(128 + 256, np.float32)
    flat[:100], flat[128:328] = first, second

    assert norm_of([flat]) == norm_of([first, second])


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_it_is_the_exact_norm_within_one_rounding(dtype):
    given = (values(5, 1000) % 7).astype(dtype)
    exact = math.sqrt(sum(Fraction(float(value)) ** 2 for value in given))

    found = norm_of([given])

    assert abs(found - exact) <= np.spacing(np.float32(exact))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([], 0.0),
        ([0.0], 0.0),
        ([3.0, 4.0], 5.0),
        ([1e-45], 1e-45),
        ([3e38], 3e38),
        ([3e38, 3e38], math.inf),
    ],
)
def test_it_reaches_from_the_smallest_to_the_largest_value(given, expected):
    found = norm_of([np.array(given, np.float32)])

    assert found == np.float32(expected)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_on_one_rank_is_seen_by_all(bad):
    whole = np.ones(256, np.float32)
    other = whole.copy()
    other[200] = bad

    assert math.isnan(norm_of([whole, other]))


def test_parts_that_are_added_over_ranks_give_the_norm_of_all():
    squares = SquareSum()
    squares.add(np.array([3.0], np.float32))
    other = SquareSum()
    other.add(np.array([4.0], np.float32))

    assert squares.norm(lambda digits: digits + other.digits()) == 5.0
    assert squares.norm() == 3.0
