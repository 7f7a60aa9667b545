"""No method hides a gradient that is not finite: a guard names it, and without one it is seen in the end."""

from __future__ import annotations

import numpy as np
import pytest
from support.rows import text_of

import rabit
import rabit.strategies as methods
from rabit.testing import run_ranks

# NumPy says so as well, in the threads of the ranks.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

RANKS, STEPS, BAD_STEP, BAD_RANK = 3, 8, 3, 1
SHAPES = {"w": (8, 6), "b": (6,)}


def gradients(rank: int, step: int, bad: float, bad_step: int = BAD_STEP) -> dict[str, np.ndarray]:
    random = np.random.default_rng([rank, step])
    found = {key: random.standard_normal(shape, np.float32) for key, shape in SHAPES.items()}
    if (rank, step) == (BAD_RANK, bad_step):
        found["w"][2, 5] = bad
    return found


def trainer_of(name: str, engine, **arguments) -> methods.ArrayTrainer:
    values = {key: np.ones(shape, np.float32) for key, shape in SHAPES.items()}
    method = methods.make(text_of(name))
    if hasattr(method, "samples"):
        method.samples = 1
    return methods.ArrayTrainer(values, method, lr=0.01, engine=engine, **arguments)


def values_of(trainer: methods.ArrayTrainer) -> np.ndarray:
    return np.concatenate([slot.value.reshape(-1) for slot in trainer.slots])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", methods.available())
def test_it_is_named_on_all_ranks_and_the_step_does_not_happen(name, bad):
    def train(engine):
        trainer = trainer_of(name, engine, check_finite=True)
        texts = []
        for step in range(STEPS):
            before = values_of(trainer)
            try:
                trainer.step(gradients(engine.rank, step, bad))
            except rabit.IntegrityError as error:
                texts.append((step, str(error)))
                assert np.array_equal(values_of(trainer), before)
        trainer.pipeline.finish()
        assert np.isfinite(values_of(trainer)).all()
        return texts

    found = run_ranks(RANKS, train, timeout=60)

    for texts in found:
        ((step, text),) = texts
        assert step == BAD_STEP
        assert (
            f"gradient 'w' of rank {BAD_RANK} has {bad} at index (2, 5) in step {step + 1}" in text
        )


# Methods go through phases: a warm-up, the steps that ranks take alone, those in which they meet.
@pytest.mark.parametrize("bad_step", [0, BAD_STEP])
@pytest.mark.parametrize("name", methods.available())
def test_without_a_guard_its_rank_sees_it_in_its_step(name, bad_step):
    def train(engine):
        found = []
        for bad in (np.nan, np.inf):
            trainer = trainer_of(name, engine)
            is_finite = []
            for step in range(STEPS):
                trainer.step(gradients(engine.rank, step, bad, bad_step))
                is_finite.append(bool(np.isfinite(values_of(trainer)).all()))
            trainer.pipeline.finish()
            found.append(is_finite)
        return found

    found = run_ranks(RANKS, train, timeout=60)

    want = [step < bad_step for step in range(STEPS)]
    assert found[BAD_RANK] == [want, want]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("text", ["randomk:ratio=0.02", "topk:ratio=0.02", "wangni:ratio=0.02"])
def test_where_one_entry_of_many_travels_all_ranks_see_it_in_its_step(text, dtype):
    def train(engine):
        trainer = methods.ArrayTrainer(
            {"w": np.ones((8, 6), dtype)}, methods.make(f"{text},small=0"), lr=0.01, engine=engine
        )
        given = np.random.default_rng(engine.rank).standard_normal((8, 6)).astype(dtype)
        if engine.rank == BAD_RANK:
            given[2, 5] = np.nan
        trainer.step({"w": given})
        return bool(np.isfinite(values_of(trainer)).all())

    assert run_ranks(RANKS, train, timeout=60) == [False] * RANKS
