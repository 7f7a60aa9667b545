"""Optimizers as functions of slices: each element of the result depends on that element alone.

An update takes (parameter, gradient, state, step) and writes into `parameter` and `state`, a dict of arrays
that begins empty; step counts from 1. The bits of a slice are those of the whole tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["Update", "adamw", "momentum", "sgd"]

Array = np.ndarray[Any, Any]
Update = Callable[[Array, Array, dict[str, Array], int], None]


def sgd(lr: float, weight_decay: float = 0.0) -> Update:
    """Stochastic gradient descent: p -= lr * (g + weight_decay * p)."""

    def update(parameter: Array, gradient: Array, state: dict[str, Array], step: int) -> None:
        parameter -= lr * (gradient + weight_decay * parameter if weight_decay else gradient)

    return update


def momentum(lr: float, beta: float = 0.9) -> Update:
    """Heavy-ball momentum (Polyak, 1964), as torch.optim.SGD has it: m = beta * m + g, p -= lr * m."""

    def update(parameter: Array, gradient: Array, state: dict[str, Array], step: int) -> None:
        if "momentum" not in state:
            state["momentum"] = gradient.copy()
        else:
            state["momentum"] *= beta
            state["momentum"] += gradient
        parameter -= lr * state["momentum"]

    return update


def adamw(
    lr: float = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.01,
) -> Update:
    """AdamW (Loshchilov and Hutter, Decoupled Weight Decay Regularization, 2019)."""
    first, second = betas

    def update(parameter: Array, gradient: Array, state: dict[str, Array], step: int) -> None:
        if not state:
            state["mean"], state["square"] = np.zeros_like(parameter), np.zeros_like(parameter)
        mean, square = state["mean"], state["square"]
        parameter *= 1 - lr * weight_decay
        mean *= first
        mean += (1 - first) * gradient
        square *= second
        square += (1 - second) * (gradient * gradient)
        root = np.sqrt(square / (1 - second**step))
        root += eps
        parameter -= lr / (1 - first**step) * (mean / root)

    return update
