"""Mesh and Spec: the ranks of a job as a grid, and how the dimensions of an array lie on it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from rabit.checkpoint.leaves import even_rows
from rabit.errors import InvalidArgument

__all__ = ["Mesh", "Spec"]


class Mesh:
    """Ranks as the points of a grid with named axes: `Mesh({"data": 2, "model": 2})`.

    axes: the number of ranks along each axis, at least 1; the last axis varies fastest, so that rank 1 of the example
    has data 0 and model 1. Immutable. Raises InvalidArgument for an empty mesh or a size below 1.
    """

    def __init__(self, axes: Mapping[str, int]) -> None:
        if not axes:
            raise InvalidArgument(
                "Mesh: there are no axes. Name at least one, as in Mesh({'data': 4})."
            )
        for axis, count in axes.items():
            if count < 1:
                raise InvalidArgument(
                    f"Mesh: the axis {axis!r} has {count} ranks; it needs at least 1."
                )
        self.axes = dict(axes)

    def __repr__(self) -> str:
        return f"Mesh({self.axes})"

    @property
    def size(self) -> int:
        """How many ranks the mesh has: the product of its axes."""
        return prod(self.axes.values())

    def place(self, rank: int) -> dict[str, int]:
        """Where `rank` stands on each axis."""
        found = {}
        for axis in reversed(self.axes):
            rank, found[axis] = divmod(rank, self.axes[axis])
        return found

    def groups(self, axis: str) -> list[tuple[int, ...]]:
        """The ranks that differ along `axis` alone: a group for each place on the other axes."""
        found: dict[tuple[tuple[str, int], ...], list[int]] = {}
        for rank in range(self.size):
            others = {name: at for name, at in self.place(rank).items() if name != axis}
            found.setdefault(tuple(others.items()), []).append(rank)
        return [tuple(ranks) for ranks in found.values()]


@dataclass(frozen=True)
class Spec:
    """How an array lies on a mesh.

    dims: for each dimension the axis that divides it, or None where every rank of an axis holds it whole.
    partial: axes along which the ranks hold summands of the array.
    Rows are divided evenly: the first ranks of an axis hold one row more where the division leaves a remainder.
    """

    dims: tuple[str | None, ...]
    partial: tuple[str, ...] = ()

    @staticmethod
    def of(dims: Iterable[str | None], shape: Sequence[int], mesh: Mesh, what: str) -> Spec:
        """A checked spec of an array of this shape. Raises InvalidArgument, naming the array `what`."""
        found = tuple(dims)
        if len(found) != len(shape):
            raise InvalidArgument(
                f"annotation of {what}: {found} names {len(found)} dimensions, and the array has the shape "
                f"{tuple(shape)}. Give an axis or None for each dimension."
            )
        used = [axis for axis in found if axis is not None]
        for axis in used:
            if axis not in mesh.axes:
                known = ", ".join(mesh.axes)
                raise InvalidArgument(
                    f"annotation of {what}: the mesh has no axis {axis!r}. It has: {known}."
                )
            if used.count(axis) > 1:
                raise InvalidArgument(
                    f"annotation of {what}: {found} divides two dimensions by {axis!r}. An axis divides one."
                )
        return Spec(found)

    def interval(
        self, dim: int, length: int, mesh: Mesh, place: Mapping[str, int]
    ) -> tuple[int, int]:
        """(start, end) of the rows of a dimension of `length` rows that the rank at `place` holds."""
        axis = self.dims[dim]
        return (0, length) if axis is None else even_rows(length, place[axis], mesh.axes[axis])

    def part(self, shape: Sequence[int], mesh: Mesh, place: Mapping[str, int]) -> tuple[slice, ...]:
        """The indices of the part that the rank at `place` holds of an array of this shape."""
        return tuple(
            slice(*self.interval(dim, length, mesh, place)) for dim, length in enumerate(shape)
        )

    def __str__(self) -> str:
        text = ", ".join("-" if axis is None else axis for axis in self.dims)
        return f"({text})" + (f" partial over {', '.join(self.partial)}" if self.partial else "")
