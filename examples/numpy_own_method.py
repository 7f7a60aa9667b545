"""A gradient method of one's own in one file: gradients travel in parts that take turns.

    rabitrun -np 2 python examples/numpy_own_method.py

In each step every gradient sends one of its parts, so that a step costs a part of the bytes; what is
not sent waits in the error feedback around it.  The same class works with
`rabit_torch.DistributedOptimizer(..., strategy=TakingTurns(4))`.  Data: the handwritten digits that
scikit-learn ships; softmax regression.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import numpy as np
from sklearn.datasets import load_digits

import rabit
from rabit.strategies import ArrayTrainer, Bypass, ErrorFeedback, Exchange, Reduced, Synchronous


@dataclass(frozen=True)
class TakingTurns(Exchange):
    """x' = mean of the part of x whose turn it is, zero elsewhere."""

    parts: int = 4

    @property
    def is_biased(self) -> bool:
        return True

    async def __call__(self, x, state, ranks):
        mine = x.reshape(-1)[ranks.step % self.parts :: self.parts]
        mean = await ranks.mean(mine)
        value, sent = np.zeros_like(x), np.zeros_like(x)
        for array, part in ((value, mean), (sent, mine)):
            array.reshape(-1)[ranks.step % self.parts :: self.parts] = part
        return Reduced(value, sent)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200, help="steps of gradient descent (200)")
    parser.add_argument("--parts", type=int, default=4, help="parts of a gradient (4)")
    return parser.parse_args()


def gradients(parameters, images, labels):
    scores = images @ parameters["weights"] + parameters["bias"]
    odds = np.exp(scores - scores.max(axis=1, keepdims=True))
    error = odds / odds.sum(axis=1, keepdims=True) - np.eye(10)[labels]
    return {"bias": error.mean(axis=0), "weights": images.T @ error / len(images)}


def main() -> None:
    args = arguments()
    rabit.init()
    bunch = load_digits()
    order = np.random.default_rng(0).permutation(len(bunch.data))
    images, labels = bunch.data[order] / 16.0, bunch.target[order]
    test = len(images) // 5
    mine = slice(test + rabit.rank(), None, rabit.size())

    parameters = {"weights": np.zeros((64, 10)), "bias": np.zeros(10)}
    method = Synchronous(Bypass(ErrorFeedback(TakingTurns(args.parts)), below_bytes=1024))
    trainer = ArrayTrainer(parameters, method, lr=1.0)
    for _ in range(args.steps):
        trainer.step(gradients(parameters, images[mine], labels[mine]))

    found = np.argmax(images[:test] @ parameters["weights"] + parameters["bias"], axis=1)
    if rabit.rank() == 0:
        accuracy = np.mean(found == labels[:test])
        print(
            f"{rabit.size()} ranks, 1/{args.parts} of the gradient a step: test accuracy {accuracy:.3f}"
        )
    rabit.shutdown()


if __name__ == "__main__":
    main()
