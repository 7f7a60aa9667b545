"""From one spec of an array to another: the collectives, and the bytes that a rank receives for each.

With M bytes of the array that the ranks of an axis hold together and n ranks: an allreduce takes 2(n-1)/n·M, a
reduce-scatter and an allgather (n-1)/n·M each, an alltoall (n-1)/n²·M, and a slice nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, prod

from rabit.sharding.annotated.mesh import Mesh, Spec

__all__ = ["Step", "steps_between"]


@dataclass(frozen=True)
class Step:
    """One exchange along an axis.

    kind: "slice", "reducescatter", "allreduce", "alltoall" or "allgather". dim: the dimension that the axis divides
    afterwards, or before an allgather; -1 for an allreduce. source_dim: the one that it divided before an alltoall,
    else -1. bytes: received by a rank, from the formula. after: the spec that it leads to.
    """

    kind: str
    axis: str
    dim: int
    source_dim: int
    bytes: int
    after: Spec


def steps_between(
    shape: Sequence[int], item_bytes: int, source: Spec, target: Spec, mesh: Mesh
) -> list[Step]:
    """The exchanges that take an array from `source` to `target`; empty if they are equal.

    Cheap ones come first, so that the later ones find less to send.
    """
    found: list[Step] = []
    current = source
    while current != target:
        kind, axis, dim, source_dim = next(_choices(current, target))
        dims = list(current.dims)
        if source_dim >= 0:
            dims[source_dim] = None
        if dim >= 0:
            dims[dim] = None if kind == "allgather" else axis
        partial = tuple(name for name in current.partial if name != axis)
        after = Spec(tuple(dims), partial)
        held = Fraction(item_bytes * prod(shape), _parts(current, axis, mesh))
        found.append(Step(kind, axis, dim, source_dim, _bytes(kind, held, mesh.axes[axis]), after))
        current = after
    return found


def _choices(current: Spec, target: Spec) -> Iterator[tuple[str, str, int, int]]:
    """(kind, axis, dim, source dim) of each exchange that leads towards `target`, the cheapest kind first."""
    free = [dim for dim, axis in enumerate(current.dims) if axis is None]
    wanted = {axis: dim for dim, axis in enumerate(target.dims) if axis is not None}
    for axis, dim in wanted.items():
        if dim in free and axis not in current.dims and axis not in current.partial:
            yield "slice", axis, dim, -1
    for axis in current.partial:
        if wanted.get(axis) in free:
            yield "reducescatter", axis, wanted[axis], -1
    for axis in current.partial:
        yield "allreduce", axis, -1, -1
    held = [
        (axis, dim) for dim, axis in enumerate(current.dims) if axis not in (None, target.dims[dim])
    ]
    for axis, dim in held:
        if axis is not None and wanted.get(axis) in free:
            yield "alltoall", axis, wanted[axis], dim
    for axis, dim in held:
        if axis is not None:
            yield "allgather", axis, dim, -1


def _parts(spec: Spec, axis: str, mesh: Mesh) -> int:
    """Into how many parts the other axes divide the array."""
    return prod(mesh.axes[name] for name in spec.dims if name not in (None, axis))


def _bytes(kind: str, held: Fraction, ranks: int) -> int:
    share = {
        "slice": Fraction(0),
        "reducescatter": Fraction(ranks - 1, ranks),
        "allgather": Fraction(ranks - 1, ranks),
        "allreduce": Fraction(2 * (ranks - 1), ranks),
        "alltoall": Fraction(ranks - 1, ranks * ranks),
    }[kind]
    return ceil(held * share)
