"""Every method that has a name learns: the short form of tests/bench/methods_digits.py."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from support.rows import ROWS, text_of

import rabit.strategies as methods
from rabit.testing import run_ranks

RANKS, STEPS, BATCH, FEATURES, CLASSES = 3, 120, 16, 32, 16

def data(rank: int, step: int) -> tuple[np.ndarray, np.ndarray]:
    """Points around the centre of their class; rank -1 is what is left for the test."""
    centres = np.random.default_rng(4).standard_normal((CLASSES, FEATURES))
    random = np.random.default_rng([5, rank + 1, step])
    labels = random.integers(CLASSES, size=BATCH if rank >= 0 else 800)
    points = centres[labels] + 1.2 * random.standard_normal((len(labels), FEATURES))
    return points.astype(np.float32), labels


def softmax(points: np.ndarray, w: np.ndarray, b: np.ndarray) -> np.ndarray:
    logits = points @ w + b
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def loss(parameters: dict[str, np.ndarray]) -> float:
    points, labels = data(-1, 0)
    chances = softmax(points, parameters["w"], parameters["b"])
    return float(-np.log(chances[np.arange(len(labels)), labels] + 1e-12).mean())


def train(text: str, rate: float) -> float:
    """The loss of the mean of the ranks' parameters."""

    def on_rank(engine):
        parameters = {
            "w": np.full((FEATURES, CLASSES), 0.01, np.float32),
            "b": np.zeros(CLASSES, np.float32),
        }
        method = methods.make(text)
        trainer = methods.ArrayTrainer(parameters, method, lr=rate, engine=engine)
        for step in range(STEPS):
            trainer.set_lr(rate * (1 - 0.9 * step / STEPS))
            points, labels = data(engine.rank, step)
            error = softmax(points, parameters["w"], parameters["b"])
            error[np.arange(BATCH), labels] -= 1
            if hasattr(method, "samples"):
                method.samples = BATCH
            else:
                error /= BATCH
            trainer.step({"w": points.T @ error, "b": error.sum(axis=0)})
        trainer.pipeline.finish()
        return parameters

    found = run_ranks(RANKS, on_rank, timeout=120, deterministic=True)
    return loss({key: np.mean([each[key] for each in found], axis=0) for key in found[0]})


@functools.cache
def of_the_mean() -> float:
    return train("mean", 0.5)


@pytest.mark.parametrize("name", methods.available())
def test_it_comes_most_of_the_way_that_the_mean_comes(name):
    start, plain = np.log(CLASSES), of_the_mean()

    # The defaults are for long training and large layers.
    arguments, rate = ROWS[name].learns
    found = train(text_of(name, arguments), rate)

    assert plain < 0.3 * start
    assert found < plain + 0.1 * (start - plain)
