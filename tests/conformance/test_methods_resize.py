"""A state that other ranks continue with: what is known of ranks that are gone must not stay for ever."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support import strategy_suite as suite
from support.rows import text_of

import rabit
import rabit.strategies as methods
from rabit.testing import run_ranks
from rabit.training.state import Change

SHAPE = (6, 5)


def gradient(process: int) -> np.ndarray:
    return np.random.default_rng(process).standard_normal(SHAPE)


def trained(
    make: Any, processes: list[int], steps: int, saved: list[Any] | None = None, change: Any = None
) -> list[Any]:
    """What the optimizer of each rank got last, and its state; a process has one gradient for ever."""

    def train(engine):
        trainer = methods.ArrayTrainer({"w": np.zeros(SHAPE)}, make(), lr=0.1, engine=engine)
        if saved is not None:
            trainer.pipeline.load_state_dict(saved[engine.rank], change and change(engine.rank))
        for _ in range(steps):
            trainer.step({"w": gradient(processes[engine.rank])})
        return trainer.slots[0].grad, trainer.pipeline.state_dict()

    return run_ranks(len(processes), train, timeout=60)


METHODS = {
    "ef21": suite.every(methods.Differences(suite.topk(0.3))),
    "ef21-sgdm": suite.every(methods.LocalMomentum(methods.Differences(suite.topk(0.3)), 0.5)),
}
CHANGES = {
    "one is lost": ([0, 1, 2], [0, 2], lambda rank: Change(3, 2)),
    "one comes": ([0, 1], [0, 1, 2], lambda rank: Change(2, 3, rank == 2, True)),
    "one comes for another": ([0, 1, 2], [0, 1, 3], lambda rank: Change(3, 3, rank == 2, True)),
}


@pytest.mark.parametrize("what", CHANGES)
@pytest.mark.parametrize("name", METHODS)
def test_it_comes_to_the_mean_of_the_ranks_that_there_are(name, what):
    before, now, change = CHANGES[what]
    states = [state for _, state in trained(METHODS[name], before, 10)]
    saved = [states[before.index(each)] if each in before else states[0] for each in now]

    found = trained(METHODS[name], now, 60, saved, change)

    mean = np.mean([gradient(each) for each in now], axis=0)
    for value, _ in found:
        assert np.abs(value - mean).max() <= 1e-9


def test_neighbours_that_know_each_other_cannot_be_divided():
    states = [state for _, state in trained(methods.LowPrecisionRing, [0, 1, 2], 2)]

    with pytest.raises(rabit.InvalidArgument, match="is of 3 ranks, and 2 continue, or others"):
        trained(methods.LowPrecisionRing, [0, 1], 1, states, lambda rank: Change(3, 2))


@pytest.mark.parametrize("name", methods.available())
def test_parts_of_another_number_of_ranks_are_refused_where_nobody_divides_them(name):
    def make():
        method = methods.make(text_of(name))
        if hasattr(method, "samples"):
            method.samples = 1
        return method

    states = [state for _, state in trained(make, [0, 1, 2], 3)]

    if states[0]["local"]:
        with pytest.raises(rabit.InvalidArgument, match="saved by 3 ranks, each of which has its own part, and 2"):
            trained(make, [0, 1], 1, states)
    else:
        trained(make, [0, 1], 1, states)


def test_a_state_that_is_refused_has_changed_nothing():
    """Of two parameters the first is as it was saved."""
    states = [state for _, state in trained(METHODS["ef21"], [0], 3)]
    ((path, value),) = [each for each in states[0]["local"].items() if each[1].shape == SHAPE][:1]

    def load(engine):
        values = {"w": np.zeros(SHAPE), "wider": np.zeros((6, 6))}
        trainer = methods.ArrayTrainer(values, METHODS["ef21"](), lr=0.1, engine=engine)
        other = path.replace("w/", "wider/")
        saved = trainer.pipeline.state_dict()
        saved["local"] |= {path: value, other: value}
        with pytest.raises(rabit.InvalidArgument, match=f"'{other}' has shape .6, 5. and .6, 6. is expected"):
            trainer.pipeline.load_state_dict(saved)
        return trainer.pipeline.state_dict()["local"][path]

    assert not run_ranks(1, load)[0].any()
