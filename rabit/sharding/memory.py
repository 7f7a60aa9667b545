"""Bytes that sharded training keeps on a rank and moves in a step, by formula, before anything runs.

Source of the formulas: Rajbhandari et al., ZeRO (2020), with the rows that `FlatLayout` divides by.
"""

from __future__ import annotations

from typing import NamedTuple

from rabit.errors import InvalidArgument
from rabit.sharding.layout import FlatLayout
from rabit.types import DType

__all__ = ["STAGES", "RankBytes", "rank_bytes", "unit_bytes", "wire_bytes"]

STAGES = (None, "optimizer", "gradients", "parameters")


class RankBytes(NamedTuple):
    """Bytes on one rank between two steps, without activations and buffers."""

    parameters: int
    gradients: int
    state: int

    @property
    def total(self) -> int:
        return sum(self)


def rank_bytes(
    layout: FlatLayout, shard: str | None, rank: int = 0, state_bytes_per_element: int = 8
) -> RankBytes:
    """What `rank` keeps if `shard` is divided: None (nothing), "optimizer", "gradients" or "parameters".

    Each word includes those before it. state_bytes_per_element: of the optimizer: 8 for Adam in float32, 4 for
    momentum, 0 for SGD. Raises InvalidArgument for another word.
    """
    stage = _stage(shard)
    parameters = gradients = state = 0
    for flat in layout.flats:
        size = DType[flat.dtype.upper()].itemsize
        whole = flat.rows * layout.block
        part = layout.part(flat, rank).length * layout.block
        parameters += size * (part if stage >= 3 else whole)
        if flat.is_trained:
            gradients += size * (part if stage >= 2 else whole)
            state += state_bytes_per_element * (part if stage >= 1 else whole)
    return RankBytes(parameters, gradients, state)


def wire_bytes(layout: FlatLayout, shard: str | None, micro_steps: int = 1) -> int:
    """Payload bytes that the ranks together receive in a step of `micro_steps` backward passes.

    None and "optimizer" exchange once per step, "gradients" scatters in each pass, "parameters" gathers twice
    and scatters once in each pass.
    """
    stage = _stage(shard)
    total = 0
    for flat in layout.flats:
        # A gather brings each rank what the others own; a reduce-scatter is its reverse.
        pass_bytes = flat.rows * layout.block * DType[flat.dtype.upper()].itemsize * (layout.parts - 1)
        scatters = (micro_steps if stage >= 2 else 1) if flat.is_trained else 0
        gathers = 2 * micro_steps if stage == 3 else (1 if flat.is_trained else 0)
        total += pass_bytes * (scatters + gathers)
    return total


def unit_bytes(layout: FlatLayout) -> dict[str, int]:
    """Bytes of the whole values of each unit."""
    found: dict[str, int] = {}
    for flat in layout.flats:
        unit = flat.entries[0].unit
        size = flat.rows * layout.block * DType[flat.dtype.upper()].itemsize
        found[unit] = found.get(unit, 0) + size
    return found


def _stage(shard: str | None) -> int:
    if shard not in STAGES:
        known = ", ".join(repr(stage) for stage in STAGES)
        raise InvalidArgument(f"shard is {shard!r}; expected one of {known}.")
    return STAGES.index(shard)
