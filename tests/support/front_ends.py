"""Some steps of a method on given gradients, by ArrayTrainer: the front ends must come to the same bits.

Learning rates and the share of the parameters in their gradients are powers of two, so that no product is rounded
and frameworks that fuse products with sums come to the same bits as NumPy.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from support.rows import text_of

import rabit.strategies as methods

STEPS = 6
SHAPES: dict[str, tuple[int, ...]] = {"table": (24, 10), "bias": (10,), "filters": (3, 2, 3, 3)}
SHARE = 0.25

# Methods that work in step(), of which hooks for gradients alone are not told: these refuse them.
OF_STEPS = frozenset(name for name in methods.available() if methods.make(name).uses_step)
TEXTS = {name: text_of(name) for name in methods.available()}


def first(dtype: type) -> dict[str, np.ndarray]:
    """The parameters with which every rank begins."""
    random = np.random.default_rng(1)
    return {name: random.standard_normal(shape).astype(dtype) for name, shape in SHAPES.items()}


def noise(name: str, rank: int, step: int, dtype: type) -> np.ndarray:
    """A gradient is this and SHARE of the parameter."""
    random = np.random.default_rng([len(name), rank, step])
    return random.standard_normal(SHAPES[name]).astype(dtype)


def rate(step: int) -> float:
    return 0.5 if step < STEPS // 2 else 0.25


def before(strategy: Any, rank: int, step: int) -> None:
    """What a script sets before a step."""
    if hasattr(strategy, "samples"):
        strategy.samples = 1 + (rank + step) % 3


def waits_for_averages(name: str) -> bool:
    """Averages of `async` come when they come: to save, before the next step, brings them in."""
    return name == "async"


def by_arrays(engine: Any, method: str, name: str, dtype: type) -> dict[str, np.ndarray]:
    """name: of the front end's own; random numbers depend on it."""
    values, strategy = first(dtype), methods.make(TEXTS[method])
    trainer = methods.ArrayTrainer(values, strategy, lr=rate(0), engine=engine, name=name)
    for step in range(STEPS):
        trainer.set_lr(rate(step))
        before(strategy, engine.rank, step)
        given = {
            each: noise(each, engine.rank, step, dtype) + dtype(SHARE) * values[each]
            for each in reversed(SHAPES)
        }
        trainer.step(given)
        if waits_for_averages(method):
            trainer.pipeline.state_dict()
    trainer.pipeline.finish()
    return values


def difference(values: dict[str, np.ndarray], expected: dict[str, np.ndarray], dtype: type) -> str:
    """What of a front end's parameters is not as expected, or nothing."""
    begin = first(dtype)
    for name, value in values.items():
        if not np.isfinite(value).all() or np.array_equal(value, begin[name]):
            return f"{name} is not finite or has not moved"
        if value.dtype != dtype or not np.array_equal(value, expected[name]):
            return f"{name} is {np.abs(value - expected[name]).max():g} apart"
    return ""
