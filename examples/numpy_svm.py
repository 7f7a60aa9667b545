"""A distributed linear support vector machine on NumPy alone: no framework but rabit.

    rabitrun -np 2 python examples/numpy_svm.py

Data: the UCI handwritten digits that scikit-learn ships; the machine tells even digits from odd.
Every rank holds its own share of the samples; what travels in each step is one subgradient.
"""

from __future__ import annotations

import argparse

import numpy as np
from sklearn.datasets import load_digits

import rabit


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=400, help="steps of gradient descent (400)")
    parser.add_argument(
        "--regularisation", type=float, default=1e-3, help="weight of |w|^2 (0.001)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the split into train and test (0)")
    return parser.parse_args()


def pairs(images: np.ndarray) -> np.ndarray:
    """Pixels, their products with the pixel to the right and below, and a constant."""
    square = images.reshape(-1, 8, 8)
    right = (square[:, :, 1:] * square[:, :, :-1]).reshape(len(images), -1)
    below = (square[:, 1:, :] * square[:, :-1, :]).reshape(len(images), -1)
    return np.hstack([images, right, below, np.ones((len(images), 1))])


def main() -> None:
    args = arguments()
    rabit.init()
    rank, size = rabit.rank(), rabit.size()
    bunch = load_digits()
    order = np.random.default_rng(args.seed).permutation(len(bunch.data))
    samples = pairs(bunch.data[order] / 16.0)
    labels = np.where(bunch.target[order] % 2 == 0, 1.0, -1.0)
    test = len(samples) // 5
    mine = slice(test + rank, None, size)
    x, y = samples[mine], labels[mine]
    total = int(rabit.allreduce(np.array([len(x)]), name="samples", op=rabit.Sum)[0])

    weights = np.zeros(samples.shape[1])
    average = np.zeros_like(weights)
    for step in range(args.steps):
        violated = y * (x @ weights) < 1.0
        hinge = -(y[violated, None] * x[violated]).sum(axis=0)
        gradient = rabit.allreduce(hinge, name="gradient", op=rabit.Sum) / total
        weights -= (gradient + args.regularisation * weights) * 2.0 / (1.0 + step) ** 0.5
        average += (weights - average) / (step + 1)

    part = slice(rank, test, size)
    right = np.sum(np.sign(samples[:test][part] @ average) == labels[:test][part])
    right = int(rabit.allreduce(np.array([right]), name="right", op=rabit.Sum)[0])
    if rank == 0:
        print(f"{size} ranks, {total} training samples: test accuracy {right / test:.3f}")
    rabit.shutdown()


if __name__ == "__main__":
    main()
