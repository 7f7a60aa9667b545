"""What DTensor changes for an operation, with its bytes."""

from __future__ import annotations

import logging
import re
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil, prod
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Placement
from torch.distributed.tensor import _utils as tensor_utils

from rabit import Unsupported

__all__ = ["Resharding", "Watch"]

_LOG = logging.getLogger("rabit_torch.sharding")
_LIBRARIES = (str(Path(torch.__file__).parent), str(Path(__file__).parent))
_watches: list[Watch] = []


@dataclass(frozen=True)
class Resharding:
    """An operand went from one layout to another, without an annotation that says so.

    operation: of torch. bytes: that this rank receives, each time. is_sum: summands were added, as a product along a
    divided dimension needs; else parts were gathered or exchanged. line: of the program, or of its backward().
    """

    operation: str
    shape: tuple[int, ...]
    source: str
    target: str
    bytes: int
    is_sum: bool
    line: str
    count: int = 1


class Watch:
    """Sees the reshardings of DTensors on meshes that are equal to `mesh`. strict: refuses those that are not sums."""

    def __init__(self, mesh: Any) -> None:
        self.mesh = mesh
        self.strict = False
        self._found: dict[Resharding, int] = {}
        self._world: Any = dist.group.WORLD

    @staticmethod
    def of(axes: Mapping[str, int]) -> Watch:
        """The one of the mesh with these axes, which is made with its process groups if there is none."""
        for watch in _watches:
            is_equal = watch.mesh.mesh_dim_names == tuple(axes) and watch.mesh.shape == tuple(
                axes.values()
            )
            if is_equal and watch._world is dist.group.WORLD:
                return watch
        _watch_all()
        made = Watch(init_device_mesh("cpu", tuple(axes.values()), mesh_dim_names=tuple(axes)))
        _watches.append(made)
        return made

    def found(self) -> list[Resharding]:
        return [replace(resharding, count=count) for resharding, count in self._found.items()]

    def see(self, source: Any, target: Any, operation: str) -> None:
        """DTensor is about to change an operand of `operation`. Raises Unsupported if that is refused."""
        if source.mesh != self.mesh:
            return
        size = prod(source.shape) * source.tensor_meta.dtype.itemsize
        moved = _bytes(size, self.mesh.shape, source.placements, target.placements)
        if not moved:
            return
        pairs = zip(source.placements, target.placements, strict=True)
        is_sum = not any(before.is_shard() and before != after for before, after in pairs)
        was, now = (_text(self.mesh, spec.placements) for spec in (source, target))
        resharding = Resharding(operation, tuple(source.shape), was, now, moved, is_sum, _line())
        text = (
            f"{operation} at {resharding.line}: an operand of shape {resharding.shape} goes from {was} to "
            f"{now}, {moved:,} bytes per rank"
        )
        if self.strict and not is_sum:
            raise Unsupported(
                f"distribute: strict, and {text}, which no annotation mentions. Annotate another layout, or leave "
                "strict out"
            )
        if resharding not in self._found and not is_sum and dist.get_rank() == 0:
            _LOG.warning("implicit resharding: %s", text)
        self._found[resharding] = self._found.get(resharding, 0) + 1


def _watch_all() -> None:
    """From now on DTensor shows what it changes to the watches."""
    context: Any = getattr(tensor_utils, "ExplicitRedistributionContext", None)
    if context is None or not hasattr(context, "observe_redistribution"):
        raise Unsupported(
            f"distribute: torch {torch.__version__} does not show what DTensor redistributes. Take torch 2.13 or newer"
        )
    if _watches:
        return
    observe = context.observe_redistribution

    def seen(source: Any, target: Any, message: Any) -> None:
        for watch in _watches:
            watch.see(source, target, _operation(message))
        observe(source, target, message)

    context.observe_redistribution = staticmethod(seen)


def _operation(message: Any) -> str:
    """The operation's name in DTensor's own message."""
    found = re.search(r"aten\.(\w+(\.\w+)?)", str(message))
    return found.group(1) if found else str(message)


def _bytes(
    size: int, ranks: Sequence[int], source: Sequence[Placement], target: Sequence[Placement]
) -> int:
    """What a rank receives, axis by axis. An exchange between dimensions is an allgather on a CPU."""
    total = Fraction(0)
    current = list(source)
    for axis, (was, now) in enumerate(zip(source, target, strict=True)):
        if was == now:
            continue
        others = (ranks[i] for i, at in enumerate(current) if at.is_shard() and i != axis)
        held = Fraction(size, prod(others))
        share = Fraction(ranks[axis] - 1, ranks[axis])
        if was.is_partial():
            total += held * share * (1 if now.is_shard() else 2)
        elif was.is_shard():
            total += held * share
        current[axis] = now
    return ceil(total)


def _text(mesh: Any, placements: Sequence[Placement]) -> str:
    names = mesh.mesh_dim_names
    return "(" + ", ".join(f"{name} {at}" for name, at in zip(names, placements, strict=True)) + ")"


def _line() -> str:
    for frame, number in traceback.walk_stack(None):
        if not frame.f_code.co_filename.startswith(_LIBRARIES):
            return f"{Path(frame.f_code.co_filename).name}:{number}"
    return "?"
