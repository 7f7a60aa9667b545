"""Memory that comes back with the last array over it, and never before."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from rabit.training.reused_memory import ReusedMemory

SHAPE = (200, 100)


def address(array):
    return array.__array_interface__["data"][0]


def test_memory_is_used_again_when_nobody_refers_to_it():
    memory = ReusedMemory()
    first = memory.empty(SHAPE, np.float32)
    where = address(first)

    del first
    gc.collect()

    assert address(memory.empty(SHAPE[::-1], np.int32)) == where  # Of as many bytes.


@pytest.mark.parametrize("view", [lambda x: x[3:], lambda x: x.reshape(-1).T, memoryview])
def test_a_view_keeps_its_memory(view):
    memory = ReusedMemory()
    first = memory.empty(SHAPE, np.float32)
    first[...] = 7
    kept = view(first)

    del first
    gc.collect()
    memory.empty(SHAPE, np.float32)[...] = 8

    assert np.asarray(kept).min() == np.asarray(kept).max() == 7


def test_arrays_are_as_they_were_asked_for():
    found = ReusedMemory().empty(SHAPE, np.float64)
    found[...] = 1

    assert found.shape == SHAPE and found.dtype == np.float64
    assert found.flags.c_contiguous and found.flags.writeable


def test_sizes_do_not_share_memory_and_arrays_outlive_it():
    memory = ReusedMemory()
    large, small = memory.empty(SHAPE, np.float32), memory.empty((3,), np.float32)
    other = memory.empty(SHAPE, np.float64)
    del memory
    large[...], small[...], other[...] = 1, 2, 3

    assert (large.max(), small.max(), other.max()) == (1, 2, 3)
