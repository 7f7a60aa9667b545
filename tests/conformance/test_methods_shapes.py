"""Every method on parameters of unusual shapes: none, one and no elements, no dimension; and on gradients of zero."""

from __future__ import annotations

import numpy as np
import pytest
from support.rows import text_of

import rabit
import rabit.strategies as methods
from rabit.testing import run_ranks

SHAPES: dict[str, tuple[int, ...]] = {
    "scalar": (),
    "one": (1,),
    "none": (0,),
    "one by one": (1, 1),
    "no columns": (3, 0),
    "matrix": (5, 3),
    "filters": (2, 1, 3, 3),
}
STEPS, RANKS = 6, 3


def trained(name: str, dtype: type, size: float) -> list[dict[str, np.ndarray]]:
    """The parameters of each rank, which are 1 at first, after gradients of this size."""

    def train(engine):
        random = np.random.default_rng(engine.rank)
        values = {key: np.ones(shape, dtype) for key, shape in SHAPES.items()}
        method = methods.make(text_of(name))
        if hasattr(method, "samples"):
            method.samples = 1
        trainer = methods.ArrayTrainer(values, method, lr=0.01, engine=engine)
        for _ in range(STEPS):
            trainer.step(
                {
                    key: np.asarray(size * (1 + random.random(shape)), dtype)
                    for key, shape in SHAPES.items()
                }
            )
        trainer.pipeline.finish()
        return values

    return run_ranks(RANKS, train, timeout=60)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", methods.available())
def test_parameters_of_every_shape_are_trained(name, dtype):
    for values in trained(name, dtype, 1.0):
        for key, value in values.items():
            assert value.shape == SHAPES[key] and value.dtype == dtype
            assert np.isfinite(value).all()
            assert not value.size or value.mean() < 1, key


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", methods.available())
def test_gradients_of_zero_move_nothing(name, dtype):
    for values in trained(name, dtype, 0.0):
        for value in values.values():
            assert np.abs(value - 1).max(initial=0) <= 4 * np.finfo(dtype).eps


@pytest.mark.parametrize("shapes", [((16, 12), (18, 12)), ((12, 12), (6, 24))])
@pytest.mark.parametrize("name", methods.available())
def test_ranks_whose_parameters_differ_in_shape_are_refused(name, shapes):
    def train(engine):
        shape = shapes[engine.rank]
        method = methods.make(text_of(name))
        if hasattr(method, "samples"):
            method.samples = 1
        trainer = methods.ArrayTrainer({"w": np.zeros(shape, np.float32)}, method, lr=0.1, engine=engine)
        gradient = np.zeros(shape, np.float32)
        gradient[0] = 1.0
        try:
            for _ in range(4):
                trainer.step({"w": gradient})
            trainer.pipeline.finish()
        # The rank that is refused first leaves, and the other one may be on its way to the next step.
        except (rabit.Mismatch, rabit.Aborted) as error:
            engine.close()
            return type(error)
        return None

    found = run_ranks(2, train, timeout=60)

    assert rabit.Mismatch in found and None not in found
