"""Space: the choices of each knob, and where they lie in the unit cube."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rabit.tuning.knobs import KNOBS, Values

if TYPE_CHECKING:
    from rabit.tuning.bayes import Array

__all__ = ["Space"]

# More dimensions than these, and the windows of a search are too few for them.
_KNOBS_MAX = 4

_CHOICES = {
    "partition_bytes": tuple(1 << power for power in range(18, 27)),
    "fusion_bytes": tuple(1 << power for power in (16, 18, *range(20, 28))),
    "credit_bytes": tuple(1 << power for power in range(20, 28)),
}


@dataclass(frozen=True)
class Space:
    """All combinations of the choices that can make a difference.

    names: the knobs that have more than one choice.
    choices: of each; in the cube they lie at equal distances, as they are steps of a logarithm, or
    names.
    fixed: the values of the other knobs.
    """

    names: tuple[str, ...]
    choices: tuple[tuple[Any, ...], ...]
    fixed: Mapping[str, Any]

    @classmethod
    def around(
        cls,
        start: Mapping[str, Any],
        knobs: Sequence[str],
        step_bytes: int,
        lanes_max: int,
        overlaps: tuple[str, ...] = (),
    ) -> Space:
        """The space that holds `start`, for steps that reduce `step_bytes`.

        A size above all bytes of a step is as good as any other such size, so few are kept.  Of more
        than four knobs that have a choice the first four of `knobs` are taken.
        """
        found: dict[str, tuple[Any, ...]] = {}
        for name in knobs:
            is_name = name == "overlap"
            choices = overlaps if is_name else _choices(name, start[name], step_bytes, lanes_max)
            if len(choices) > 1 and len(found) < _KNOBS_MAX:
                found[name] = choices
        fixed = {name: start[name] for name in KNOBS if name not in found}
        return cls(tuple(found), tuple(found.values()), fixed)

    @property
    def categorical(self) -> tuple[int, ...]:
        """The dimensions whose choices are names."""
        return tuple(i for i, name in enumerate(self.names) if name == "overlap")

    def candidates(self) -> Array:
        """Every combination as a point, shape (n, len(names))."""
        return np.array(list(itertools.product(*map(_axis, self.choices))))

    def point(self, values: Mapping[str, Any]) -> Array | None:
        """Where `values` lies; None if it is not in the space."""
        place = []
        for name, choices in zip(self.names, self.choices, strict=True):
            if values.get(name) not in choices:
                return None
            place.append(_axis(choices)[choices.index(values[name])])
        is_elsewhere = any(values.get(name) != value for name, value in self.fixed.items())
        return None if is_elsewhere else np.array(place)

    def values(self, point: Array) -> Values:
        """The combination at `point`, all knobs of it."""
        found = dict(self.fixed)
        for name, choices, place in zip(self.names, self.choices, point, strict=True):
            found[name] = choices[round(float(place) * (len(choices) - 1))]
        return {name: found[name] for name in KNOBS}


def _axis(choices: Sequence[Any]) -> Array:
    return np.linspace(0.0, 1.0, len(choices))


def _choices(name: str, start: int, step_bytes: int, lanes_max: int) -> tuple[int, ...]:
    """Ascending, with "no limit" at the end."""
    if name == "lanes":
        return tuple(range(1, lanes_max + 1))
    chosen = {choice for choice in _CHOICES[name] if choice <= step_bytes}
    larger = [choice for choice in _CHOICES[name] if choice > step_bytes]
    if name == "credit_bytes":  # a window for the whole step is none
        return (*sorted(chosen | ({start} - {0})), 0)
    if larger and 0 <= start <= step_bytes:
        chosen.add(larger[0])
    return tuple(sorted(chosen | {start}))
