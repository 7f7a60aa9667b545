"""What SlowMo and DiLoCo do with the mean move of Local SGD."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rabit.errors import InvalidArgument
from rabit.training.strategy import Array

from .ranges import in_range

__all__ = ["Nesterov", "SlowMomentum"]


@dataclass(frozen=True)
class SlowMomentum:
    """SlowMo: u = beta·u + Δ/η;  anchor = anchor - alpha·η·u, with the learning rate η of the moment.

    alpha 1, beta 0: Local SGD.  One step in between, alpha 1: heavy-ball momentum on the mean gradient.
    Refuses a learning rate of zero.
    Source: Wang et al., "SlowMo: Improving Communication-Efficient Distributed SGD with Slow Momentum",
    2020.
    """

    alpha: float = 1.0
    beta: float = 0.5

    def __post_init__(self) -> None:
        in_range(self, alpha="(0, inf)", beta="[0, 1)")

    def __call__(self, anchor: Array, move: Array, memory: Any, lr: float) -> tuple[Array, Any]:
        if lr == 0:
            raise InvalidArgument(
                "SlowMo divides by the learning rate, which is 0 at its outer step. End the schedule "
                "above zero."
            )
        memory = self.beta * memory + move / lr
        return anchor - self.alpha * lr * memory, memory


@dataclass(frozen=True)
class Nesterov:
    """DiLoCo: m = momentum·m + Δ;  anchor = anchor - lr·(Δ + momentum·m).

    lr 1, momentum 0: Local SGD.
    Source: Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models", 2023.
    """

    lr: float = 0.7
    momentum: float = 0.9

    def __post_init__(self) -> None:
        in_range(self, lr="(0, inf)", momentum="[0, 1)")

    def __call__(self, anchor: Array, move: Array, memory: Any, lr: float) -> tuple[Array, Any]:
        memory = self.momentum * memory + move
        return anchor - self.lr * (move + self.momentum * memory), memory
