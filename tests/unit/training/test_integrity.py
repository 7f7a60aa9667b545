"""Guards: NaN and Inf are named before they spread, and a flipped bit where it is."""

from __future__ import annotations

import random
import weakref

import numpy as np
import pytest

import rabit
from rabit.testing import run_ranks
from rabit.training.integrity import FiniteGuard, ReplicaCheck, finite_mode, first_not_finite


def errors_of(size, body):
    """What each rank raised: run_ranks gives only the first."""
    found = {}

    def on_rank(engine):
        try:
            body(engine)
        except rabit.IntegrityError as error:
            found[engine.rank] = error

    run_ranks(size, on_rank)
    return [found.get(rank) for rank in range(size)]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_the_first_bad_element_is_found(dtype):
    chance = random.Random(3)
    for value in (np.nan, np.inf, -np.inf):
        array = np.ones((7, 11), dtype)
        at = (chance.randrange(7), chance.randrange(11))
        array[at] = value

        assert first_not_finite(array) == (at, str(value))


def test_a_sum_that_overflows_is_no_bad_element():
    assert first_not_finite(np.full(9, 6e4, np.float16)) is None
    assert first_not_finite(np.empty(0, np.float32)) is None


def test_one_bad_gradient_is_named_on_all_ranks_at_once():
    def body(engine):
        guard = FiniteGuard("all", "test", engine, rabit.global_process_set)
        for step in range(5):
            if step == 3 and engine.rank == 1:
                guard.note("layer.weight", (2, 0), "nan")
            guard.check()

    errors = errors_of(3, body)

    assert len({str(each) for each in errors}) == 1
    assert errors[0].rank == 1
    assert "'layer.weight' of rank 1 has nan at index (2, 0) in step 4" in str(errors[0])


def test_dropped_gradients_are_forgotten():
    def body(engine):
        guard = FiniteGuard("all", "test", engine, rabit.global_process_set)
        guard.note("x", (0,), "inf")
        guard.forget()
        guard.check()

    assert errors_of(2, body) == [None, None]


def test_a_sample_looks_at_every_tensor_in_sixteen_steps():
    def body(engine):
        guard = FiniteGuard("sample", "test", engine, rabit.global_process_set)
        seen = []
        for _ in range(16):
            seen.append({each for each in range(40) if guard.wants(each)})
            guard.check()
        assert sorted(each for step in seen for each in step) == list(range(40))
        assert max(map(len, seen)) == 3

    assert errors_of(1, body) == [None]


@pytest.mark.parametrize(("size", "named"), [(2, -1), (3, 2), (4, 2)])
def test_one_flipped_bit_is_named(size, named):
    def body(engine):
        check = ReplicaCheck(3, "test", engine)
        weights = {name: np.arange(50.0) for name in ("a", "b", "c")}
        for step in range(1, 10):
            if step == 4 and engine.rank == size - 1 - (size == 4):
                weights["b"].view(np.uint8)[77] ^= 4
            check.step(weights.items)

    errors = errors_of(size, body)

    assert len({str(each) for each in errors}) == 1
    assert errors[0].rank == named and "after step 6" in str(errors[0])
    assert "'b'" in str(errors[0]) and "'a'" not in str(errors[0])


def test_any_flipped_bit_is_found():
    def body(engine):
        chance = random.Random(5)
        for _ in range(50):
            weights = {f"p{n}": np.arange(1.0 + n, dtype=np.float32) for n in range(20)}
            rank, name, bit = chance.randrange(3), f"p{chance.randrange(20)}", chance.randrange(32)
            if engine.rank == rank:
                weights[name].view(np.uint32)[0] ^= np.uint32(1 << bit)
            with pytest.raises(rabit.IntegrityError, match=f"'{name}'") as caught:
                ReplicaCheck(1, "test", engine).step(weights.items)
            assert caught.value.rank == rank

    assert errors_of(3, body) == [None] * 3


def test_parameters_are_looked_at_one_after_the_other():
    """Those of a device are copied to the memory of the host for it, which need not hold the model."""

    class Copy(np.ndarray):
        pass

    def body(engine):
        copies, alive = [], []

        def parameters():
            for number in range(8):
                copy = np.full(5, number).view(Copy)
                copies.append(weakref.ref(copy))
                alive.append(sum(reference() is not None for reference in copies))
                yield f"p{number}", copy

        ReplicaCheck(1, "test", engine).step(parameters)
        return max(alive)

    assert run_ranks(2, body, timeout=60) == [2, 2]


def test_equal_replicas_raise_nothing():
    def body(engine):
        check = ReplicaCheck(1, "test", engine)
        for step in range(20):
            check.step(lambda step=step: [("a", np.full(9, step)), ("empty", np.empty(0))])

    assert errors_of(3, body) == [None] * 3


def test_replicas_are_compared_after_equal_steps_from_a_join_on():
    def body(engine):
        check = ReplicaCheck(3, "test", engine)
        looked = []

        def step(number):
            check.step(lambda: looked.append(number) or [("a", np.ones(3))])

        for number in range(2 - engine.rank):
            step(number)
        rabit.join(engine=engine)
        for number in range(3):
            step(number)
        assert looked == [2]

    assert errors_of(2, body) == [None] * 2


@pytest.mark.parametrize(("given", "mode"), [(None, "sample"), (True, "all"), (False, "off")])
def test_arguments_win_over_settings(given, mode):
    assert finite_mode(given, "sample") == mode


def test_other_arguments_are_refused():
    with pytest.raises(rabit.InvalidArgument, match="expected True, False or 'sample'"):
        finite_mode("often", "off")
