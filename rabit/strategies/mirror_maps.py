"""Mirror maps: what a step of descent is where distance is not Euclid's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from rabit.training.strategy import Array

from .ranges import in_range

__all__ = ["Entropy", "Euclidean", "MirrorMap"]


class MirrorMap(Protocol):
    """argmin over x of ⟨g, x⟩ + D(x, y)/rate; a frozen value."""

    def __call__(self, y: Array, g: Array, rate: float) -> Array: ...


@dataclass(frozen=True)
class Euclidean:
    """D = ‖x-y‖²/2: y - rate·g, and back into the ball of `radius` around 0; 0: no ball."""

    radius: float = 0.0

    def __post_init__(self) -> None:
        in_range(self, radius="[0, inf)")

    def __call__(self, y: Array, g: Array, rate: float) -> Array:
        x: Array = y - y.dtype.type(rate) * g
        norm = float(np.linalg.norm(x))
        return x * x.dtype.type(self.radius / norm) if 0 < self.radius < norm else x


@dataclass(frozen=True)
class Entropy:
    """D = Σ x·log(x/y), on rows that are not negative and sum to 1: x ∝ y·exp(-rate·g).

    Rows are along the last axis.
    """

    def __call__(self, y: Array, g: Array, rate: float) -> Array:
        power = -y.dtype.type(rate) * g
        x = y * np.exp(power - power.max(axis=-1, keepdims=True))
        found: Array = x / x.sum(axis=-1, keepdims=True)
        return found
