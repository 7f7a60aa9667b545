"""Which axis divides which dimension of which value: a few annotations, carried along factors until nothing changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rabit.errors import InvalidArgument
from rabit.sharding.annotated.mesh import Mesh, Spec
from rabit.sharding.annotated.program import Annotation, Factor, Operation, Program

__all__ = ["Axis", "Choice", "Layouts"]


class Axis(NamedTuple):
    """An axis that divides a dimension. order: of the annotation it comes from; origin: the annotated value."""

    name: str
    order: int
    origin: str


class Choice(NamedTuple):
    """How an operation is divided. axes: of each factor, None: it is whole. lost: what could not be had, as text."""

    axes: tuple[str | None, ...]
    lost: tuple[str, ...]


class Layouts:
    """The axis of each dimension of each value of a program.

    Annotations are applied in their order, and an earlier one wins where two want the same factor.
    annotations: by name of a value, before those in the program. Raises InvalidArgument for one that does not fit.
    """

    def __init__(
        self, program: Program, mesh: Mesh, annotations: Mapping[str, Annotation] | None = None
    ) -> None:
        self._program = program
        self._mesh = mesh
        self._axes: list[list[Axis | None]] = [
            [None] * len(value.shape) for value in program.values
        ]
        self._closed: set[int] = set()
        self.stores: dict[int, Spec] = {}
        given = [(self._number(name), said) for name, said in (annotations or {}).items()]
        for order, (number, said) in enumerate([*given, *program.annotations]):
            self._annotate(order, number, said)
        self._propagate()

    def spec(self, number: int) -> Spec:
        """How operations use a value."""
        return Spec(tuple(axis and axis.name for axis in self._axes[number]))

    def is_closed(self, number: int) -> bool:
        """True if an annotation says how the value is used."""
        return number in self._closed

    def settle(self, number: int, spec: Spec) -> None:
        """A value that no annotation holds lies like this after its operation."""
        known = {axis.name: axis for axis in self._axes[number] if axis}
        self._axes[number] = [
            None if name is None else known.get(name, Axis(name, len(self._program.values), ""))
            for name in spec.dims
        ]

    def choose(self, operation: Operation) -> Choice:
        """Divides an operation: every factor by the axis of its earliest annotation that is still free."""
        wanted = []
        for index, factor in enumerate(operation.factors):
            axes = {axis.name: axis for axis in self._axes_at(operation, factor)}
            wanted += [(axis.order, index, axis) for axis in axes.values()]
        axes_of: list[str | None] = [None] * len(operation.factors)
        taken: dict[str, int] = {}
        lost = []
        for _, index, axis in sorted(wanted):
            if (
                self._divides(operation.factors[index], axis.name)
                and axes_of[index] is None
                and axis.name not in taken
            ):
                axes_of[index] = axis.name
                taken[axis.name] = index
            else:
                lost.append(self._loss(operation, index, axis, axes_of[index], taken))
        return Choice(tuple(axes_of), tuple(lost))

    def _number(self, name: str) -> int:
        try:
            return self._program.number_of(name)
        except KeyError:
            known = ", ".join(value.name for value in self._program.values)
            raise InvalidArgument(
                f"sharding.complete: an annotation names {name!r}, which the program does not have. It has: {known}."
            ) from None

    def _annotate(self, order: int, number: int, said: Annotation) -> None:
        value = self._program.values[number]
        use = said.use
        if use is None and said.store is not None:
            use = (None,) * len(said.store)
        if use is not None:
            spec = Spec.of(use, value.shape, self._mesh, value.name)
            self._axes[number] = [
                None if name is None else Axis(name, order, value.name) for name in spec.dims
            ]
            self._closed.add(number)
        if said.store is not None:
            self.stores[number] = Spec.of(said.store, value.shape, self._mesh, value.name)

    def _propagate(self) -> None:
        plain = [operation for operation in self._program.operations if operation.is_elementwise]
        others = [
            operation for operation in self._program.operations if not operation.is_elementwise
        ]
        has_changed = True
        while has_changed:
            while self._pass(plain):
                pass
            has_changed = self._pass(others)

    def _pass(self, operations: Sequence[Operation]) -> bool:
        has_changed = False
        for operation in operations:
            for factor in operation.factors:
                has_changed |= self._carry(operation, factor)
        return has_changed

    def _carry(self, operation: Operation, factor: Factor) -> bool:
        """The axis of a factor reaches the values that have none there; true if one has changed."""
        found = self._axes_at(operation, factor)
        if not found:
            return False
        axis = min(found, key=lambda candidate: candidate.order)
        has_changed = False
        for operand, dim in factor.places:
            number = operation.value(operand)
            row = self._axes[number]
            is_free = number not in self._closed and row[dim] is None
            is_used = any(other is not None and other.name == axis.name for other in row)
            if is_free and not is_used and self._divides(factor, axis.name):
                row[dim] = axis
                has_changed = True
        return has_changed

    def _axes_at(self, operation: Operation, factor: Factor) -> list[Axis]:
        found = []
        for operand, dim in factor.places:
            axis = self._axes[operation.value(operand)][dim]
            found += [] if axis is None else [axis]
        return found

    def _divides(self, factor: Factor, axis: str) -> bool:
        return factor.multiple % self._mesh.axes[axis] == 0

    def _loss(
        self,
        operation: Operation,
        index: int,
        axis: Axis,
        winner: str | None,
        taken: Mapping[str, int],
    ) -> str:
        factor = operation.factors[index]
        operand, dim = factor.places[0]
        value = self._program.values[operation.value(operand)]
        where = f"{operation.name} at {operation.line}: dimension {dim} of {value.name} is not divided by {axis.name}"
        if winner is not None:
            return f"{where}, since {winner} was annotated first"
        if axis.name in taken:
            return f"{where}, which divides another dimension of the operation already"
        ranks = self._mesh.axes[axis.name]
        return f"{where}: {ranks} ranks do not divide the {factor.multiple} rows that a reshape keeps together"
