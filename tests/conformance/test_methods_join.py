"""Ranks that have no data left call join, and the others continue: with every method, or they are told why not."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from support.rows import text_of

import rabit
import rabit.strategies as methods
from rabit.strategies.catalog import METHODS
from rabit.testing import run_ranks

SHAPES = {"w": (8, 6), "b": (6,)}


@pytest.mark.parametrize("name", methods.available())
def test_ranks_go_on_when_one_has_joined_or_are_told_why_not(name):
    """Rank 2 of 3 has three steps of data, the others five; and then all have as many."""

    survives = "join" in METHODS[name].survives

    def train(engine):
        random = np.random.default_rng(engine.rank)
        values = {key: np.ones(shape, np.float32) for key, shape in SHAPES.items()}
        method = methods.make(text_of(name))
        if hasattr(method, "samples"):
            method.samples = 1
        trainer = methods.ArrayTrainer(values, method, lr=0.01, engine=engine)
        first = 3 if engine.rank == 2 else 5
        try:
            for steps in [first, 4] if survives else [first]:
                for _ in range(steps):
                    given = {key: random.standard_normal(SHAPES[key], np.float32) for key in SHAPES}
                    trainer.step(given)
                rabit.join()
                steps_taken = trainer.pipeline.step
        except rabit.InvalidArgument as error:
            with contextlib.suppress(rabit.InvalidArgument):  # some methods refuse join itself
                rabit.join()  # rank 2 waits for it
            return str(error)
        return steps_taken == 9 and bool(all(np.isfinite(each).all() for each in values.values()))

    found = run_ranks(3, train, timeout=60)

    # Messages to a rank that has left, and sums of which it would hold a part.
    if not survives:
        assert all("has called join" in each for each in found[:2])
    else:
        assert found == [True] * 3


def test_asynchronous_ranks_end_together_after_other_numbers_of_steps_though_one_has_called_join():
    def train(engine):
        values = {"w": np.full(5, float(engine.rank))}
        trainer = methods.ArrayTrainer(values, methods.AsyncAverage(), lr=0.1, engine=engine)
        for _ in range(2 if engine.rank else 9):
            trainer.step({"w": np.zeros(5)})
        with pytest.raises(rabit.InvalidArgument, match=f"rank {engine.rank} has called join: 'array'"):
            rabit.join()
        trainer.pipeline.finish()
        return values["w"]

    found = run_ranks(2, train, timeout=60)

    assert np.allclose(np.mean(found, axis=0), 0.5)
