"""What Bagua claims of its algorithms, as far as no clock is needed: times are measured by `make methods`.

Gan et al., "BAGUA: Scaling up Distributed Learning with System Relaxations", 2021, and its released tests.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import rabit
import rabit.strategies as methods
from rabit.testing import run_ranks

RANKS = 4


def sent_and_received(engine):
    found = engine.statistics()["backend_details"]["builtin"]["transport"]
    return np.array([found["bytes_sent"], found["bytes_received"]])


def bytes_of_a_step(text, side=512, steps=3):
    """Through the link that has most to carry, in the direction that has."""

    def on_rank(engine):
        values = {"w": np.ones((side, side), np.float32)}
        trainer = methods.ArrayTrainer(values, methods.make(text), lr=0.01, engine=engine)
        gradient = np.random.default_rng(engine.rank).standard_normal((side, side), np.float32)
        trainer.step({"w": gradient})
        trainer.pipeline.finish()
        rabit.barrier()
        before = sent_and_received(engine)
        for _ in range(steps):
            trainer.step({"w": gradient})
        trainer.pipeline.finish()
        rabit.barrier()
        return (sent_and_received(engine) - before).max() / steps

    return max(run_ranks(RANKS, on_rank, "tcp", timeout=60, allreduce_algorithm="ring"))


def test_on_a_star_the_busiest_link_allows_the_claimed_speed():
    """Ranks around a switch with 100 Mbit/s each: where links are slow, a step takes what the busiest carries.

    Asserted: an fp32 ring carries at least 3.3 times the bytes of bytegrad (ideal 4), and at least 1.4 times those
    of shift-one (ideal 1.5), in the busiest direction of the busiest link, frames and agreements included.
    The same in seconds, on links that are shaped: tests/bench/methods_links.py.
    """
    ring = bytes_of_a_step("mean")

    assert ring >= 3.3 * bytes_of_a_step("bytegrad")
    assert ring >= 1.4 * bytes_of_a_step("decentralized:peers=shift-one")


def test_averaging_is_paused_and_resumed_and_paused_again_and_nobody_hangs():
    """resume, pause, resume, pause, pause, each on all ranks at moments of their own, and an end.

    Asserted: all come through; while it is paused a step is the rank's own, bit for bit; at the end the mean
    of the models is that of the local steps (they add up), and the models have come together again.
    """

    def train(engine):
        values = {"w": np.random.default_rng(engine.rank).standard_normal(50)}
        method, own, alone = methods.AsyncAverage(), np.zeros(50), []
        trainer = methods.ArrayTrainer(values, method, lr=0.5, engine=engine)
        first = values["w"].copy()

        def step():
            nonlocal own
            gradient = np.full(50, float(engine.rank))
            own = own - 0.5 * gradient
            trainer.step({"w": gradient})

        for _ in range(2):
            method.resume()
            method.resume()
            step()
            method.pause()
            while not method.is_paused:
                step()
            method.pause()
            before = values["w"].copy()
            for _ in range(4):
                step()
            alone.append(np.array_equal(values["w"], before - 4 * 0.5 * np.full(50, engine.rank)))
        method.resume()
        trainer.step({"w": np.zeros(50)})
        trainer.pipeline.finish()
        return alone, first + own, values["w"]

    alone, local, averaged = zip(*run_ranks(RANKS, train, timeout=60), strict=True)

    assert alone == ([True, True],) * RANKS
    assert np.abs(np.mean(averaged, axis=0) - np.mean(local, axis=0)).max() <= 1e-9
    assert np.ptp(averaged, axis=0).max() <= 1e-9


# --- A task that is learnt ------------------------------------------------------------------------

STEPS, BATCH, WIDTHS = 330, 16, (64, 64, 10)
# Text, learning rate, momentum.
WAYS = {
    "mean": (0.1, 0.9),
    "bytegrad:small=0": (0.1, 0.9),
    "decentralized:peers=all": (0.1, 0.9),
    "decentralized:peers=shift-one": (0.1, 0.9),
    "qadam:warmup=66,small=0": (0.01, 0.0),
}


def digits():
    """Handwritten ones: images and labels to learn from, and others."""
    found = pytest.importorskip("sklearn.datasets").load_digits()
    order = np.random.default_rng(0).permutation(len(found.target))
    images, labels = (found.data / 16).astype(np.float32)[order], found.target[order]
    return (images[:-450], labels[:-450]), (images[-450:], labels[-450:])


def forward(parameters, images):
    layers, seen = len(WIDTHS) - 1, [images]
    for layer in range(layers):
        x = seen[-1] @ parameters[f"{layer}.w"] + parameters[f"{layer}.b"]
        seen.append(np.maximum(x, 0) if layer + 1 < layers else x)
    return seen


def backward(parameters, images, labels):
    """Gradients of the mean cross entropy."""
    seen, found = forward(parameters, images), {}
    powers = np.exp(seen[-1] - seen[-1].max(axis=1, keepdims=True))
    error = powers / powers.sum(axis=1, keepdims=True)
    error[np.arange(len(labels)), labels] -= 1
    error /= len(labels)
    for layer in reversed(range(len(WIDTHS) - 1)):
        found[f"{layer}.w"], found[f"{layer}.b"] = seen[layer].T @ error, error.sum(axis=0)
        error = (error @ parameters[f"{layer}.w"].T) * (seen[layer] > 0)
    return found


def accuracy(text):
    """Of the mean of the ranks' parameters, in per cent, after as many epochs as any other method has."""
    (images, labels), (test_images, test_labels) = digits()
    highest, momentum = WAYS[text]

    def train(engine):
        random = np.random.default_rng(3)
        parameters = {}
        for layer, (before, after) in enumerate(itertools.pairwise(WIDTHS)):
            scale = np.float32(np.sqrt(2 / before))
            parameters[f"{layer}.w"] = scale * random.standard_normal((before, after), np.float32)
            parameters[f"{layer}.b"] = np.zeros(after, np.float32)
        moving = {name: np.zeros_like(each) for name, each in parameters.items()}

        def update(slot):
            moving[slot.name] = momentum * moving[slot.name] + slot.grad
            slot.value = slot.value - np.float32(slot.lr) * moving[slot.name]

        trainer = methods.ArrayTrainer(
            parameters, methods.make(text), lr=highest, update=update, engine=engine
        )
        for step in range(STEPS):
            trainer.set_lr(highest * min((step + 1) / 20, 1.05 - step / STEPS))
            batch = random.integers(len(images), size=(RANKS, BATCH))[engine.rank]
            trainer.step(backward(parameters, images[batch], labels[batch]))
        trainer.pipeline.finish()
        return parameters

    found = run_ranks(RANKS, train, timeout=120, deterministic=True)
    mean = {name: np.mean([each[name] for each in found], axis=0) for name in found[0]}
    return 100 * float((forward(mean, test_images)[-1].argmax(axis=1) == test_labels).mean())


def test_relaxed_methods_learn_what_the_mean_learns():
    """Handwritten digits, equal epochs; QAdam has a rate for Adam.

    Asserted: bytegrad, qadam and decentralized (all, shift-one) end within 1 point of the mean of gradients, and
    that one has learnt (95 %, where guessing has 10).
    """
    found = {text: accuracy(text) for text in WAYS}

    assert found["mean"] >= 95
    for text, reached in found.items():
        assert reached >= found["mean"] - 1, (text, found)
