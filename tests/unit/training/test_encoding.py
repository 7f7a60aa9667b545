"""Encodings as bytes and back."""

from __future__ import annotations

import numpy as np
import pytest

import rabit
from rabit.training.encoding import pack, unpack, unpack_all

VALUES = [
    np.arange(5, dtype=np.int16),
    np.zeros((0, 3), np.float32),
    np.array(2.5),
    np.arange(6.0).reshape(2, 3),
    (),
    (np.ones(1, bool), (np.uint8([1, 2, 3]), -7), 0.5),
]


@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
def test_what_is_packed_comes_back(value):
    found = unpack(pack(value))

    assert repr(found) == repr(value)


def test_packed_values_may_follow_one_another():
    found = unpack_all(np.concatenate([pack(each) for each in VALUES]))

    assert [repr(each) for each in found] == [repr(each) for each in VALUES]


def test_what_is_no_array_is_refused():
    with pytest.raises(rabit.InvalidArgument, match="an encoding holds str"):
        pack(("a",))


@pytest.mark.parametrize("cut", [4, 12, 24, 30])
def test_a_cut_encoding_is_an_error(cut):
    with pytest.raises(rabit.RabitError, match=r"an encoding (ends|of kind)"):
        unpack_all(pack(np.arange(3.0))[:cut])


@pytest.mark.parametrize("extents", [(-1, 1), (-2, -2), (1 << 40, 1 << 40)], ids=str)
def test_an_array_of_an_impossible_shape_is_an_error(extents):
    words = pack(np.zeros((1, 1))).view(np.int64).copy()
    words[3:5] = extents

    with pytest.raises(rabit.RabitError, match=r"holds an array of shape"):
        unpack(words.view(np.uint8))


def test_noise_is_an_error():
    noise = np.frombuffer(np.random.default_rng(0).bytes(64), np.uint8)

    with pytest.raises(rabit.RabitError, match="an encoding"):
        unpack_all(noise)
