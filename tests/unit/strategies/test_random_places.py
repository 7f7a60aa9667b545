"""The places of random-k."""

from __future__ import annotations

import numpy as np
import pytest

from rabit.strategies.topk import one_of_each


@pytest.mark.parametrize(("count", "size"), [(0, 0), (1, 1), (1, 7), (3, 10), (5, 5), (97, 1000)])
def test_places_are_in_order_none_twice_and_one_of_each_part(count, size):
    places, wide = one_of_each(count, size, np.random.default_rng(3))

    ends = np.cumsum(wide)
    assert len(places) == len(wide) == count and wide.sum() == size
    assert np.all(places >= ends - wide) and np.all(places < ends)
    assert np.ptp(wide) <= 1 if count else True


def test_each_entry_comes_as_often_as_its_part_is_narrow():
    random, draws = np.random.default_rng(5), 20_000

    seen = np.zeros(10)
    for _ in range(draws):
        places, wide = one_of_each(3, 10, random)
        seen[places] += 1

    chance = 1 / np.repeat(wide, wide)
    assert sorted(wide) == [3, 3, 4]
    assert np.all(np.abs(seen / draws - chance) <= 4 * np.sqrt(chance * (1 - chance) / draws))
