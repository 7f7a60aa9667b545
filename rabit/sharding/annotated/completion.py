"""Completion: a program and a few annotations become a plan, with every collective and its bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rabit.errors import InvalidArgument
from rabit.sharding.annotated.mesh import Mesh, Spec
from rabit.sharding.annotated.program import OUTPUT, Annotation, Operation, Program
from rabit.sharding.annotated.propagation import Layouts
from rabit.sharding.annotated.resharding import Step, steps_between

__all__ = ["Compute", "Move", "Plan", "complete"]

# Why an array changes its layout.
_SUM, _STORE, _ANNOTATION, _IMPLICIT = "sum of parts", "storage", "annotation", "implicit"


@dataclass(frozen=True)
class Move:
    """A value goes from one layout to another. combine: of its parts, "sum", "max" or "min"."""

    value: int
    source: Spec
    target: Spec
    steps: tuple[Step, ...]
    reason: str
    line: str
    combine: str = "sum"

    @property
    def bytes(self) -> int:
        """What a rank receives."""
        return sum(step.bytes for step in self.steps)


@dataclass(frozen=True)
class Compute:
    """An operation on parts. inputs, output: their layouts. axes: of each factor of the operation."""

    operation: Operation
    inputs: tuple[Spec, ...]
    output: Spec
    axes: tuple[str | None, ...]


@dataclass(frozen=True)
class Plan:
    """A program divided among the ranks of a mesh; the same on every rank. Made by `complete`.

    instructions: in the order in which all ranks run them. specs: of each value when it is used. given, results: of the
    inputs and outputs. notes: annotations that lost, and operations that run whole on every rank.
    """

    program: Program
    mesh: Mesh
    instructions: tuple[Move | Compute, ...]
    specs: tuple[Spec, ...]
    given: tuple[Spec, ...]
    results: tuple[Spec, ...]
    notes: tuple[str, ...]

    @property
    def moves(self) -> list[Move]:
        """The changes of layout that send something."""
        return [step for step in self.instructions if isinstance(step, Move) and step.bytes]

    @property
    def bytes(self) -> int:
        """What a rank receives in one run, by the formulas of rabit.sharding.annotated.resharding."""
        return sum(move.bytes for move in self.moves)

    @property
    def digest(self) -> str:
        """Sixteen hexadecimal digits that are equal for equal plans."""
        rows = [repr(self.mesh), *(_row(self.program, step) for step in self.instructions)]
        return hashlib.sha256("\n".join(rows).encode()).hexdigest()[:16]

    def spec(self, name: str) -> Spec:
        """How the value `name` is used. Raises KeyError for an unknown name."""
        return self.specs[self.program.number_of(name)]

    def table(self) -> str:
        """What was inferred, and every collective with its bytes per rank, as text."""
        mesh = " x ".join(f"{axis}={count}" for axis, count in self.mesh.axes.items())
        rows: list[tuple[str, ...]] = [("array", "shape", "layout")]
        stored = dict(zip(self.program.inputs, self.given, strict=True))
        stored |= dict(zip(self.program.outputs, self.results, strict=True))
        for number, value in enumerate(self.program.values):
            kept = stored.get(number, self.specs[number])
            text = str(self.specs[number]) + (
                "" if kept == self.specs[number] else f", stored {kept}"
            )
            rows.append((value.name, "x".join(map(str, value.shape)) or "scalar", text))
        found: list[tuple[str, ...]] = [("collective", "array", "over", "bytes", "reason")]
        for move in self.moves:
            for step in move.steps:
                if step.bytes:
                    name = self.program.values[move.value].name
                    found.append(
                        (
                            step.kind,
                            name,
                            step.axis,
                            f"{step.bytes:,}",
                            f"{move.reason}, {move.line}",
                        )
                    )
        lines = [f"mesh {mesh}: {self.mesh.size} ranks", "", *_aligned(rows), ""]
        lines += [*_aligned(found), f"{self.bytes:,} bytes per rank and run"]
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])

    __str__ = table

    def part(self, name: str, whole: Any, rank: int) -> Any:
        """The part of the array `whole` that `rank` gives as input `name`, or gets as output: a view."""
        number = self.program.number_of(name)
        spec = dict(
            zip(self.program.outputs + self.program.inputs, self.results + self.given, strict=True)
        ).get(number, self.specs[number])
        value = self.program.values[number]
        if tuple(whole.shape) != value.shape:
            raise InvalidArgument(
                f"Plan.part: {name!r} has the shape {tuple(whole.shape)}, and the program was traced with "
                f"{value.shape}."
            )
        return whole[spec.part(value.shape, self.mesh, self.mesh.place(rank))]


def complete(
    program: Program,
    mesh: Mesh,
    annotations: Mapping[str, Annotation] | None = None,
    *,
    strict: bool = False,
) -> Plan:
    """Divides a traced program among the ranks of `mesh`, from the annotations in it and `annotations` by name.

    Axes spread along the factors of each operation, elementwise ones first, until nothing changes; then every
    operation gets the collectives that it needs. Pure: every rank computes the same plan.
    strict: refuse a plan that gathers or exchanges an array which no annotation mentions.
    Raises InvalidArgument for annotations that do not fit, and with `strict` for implicit changes of layout, each with
    its line and bytes.
    """
    made = _Completion(program, mesh, annotations)
    plan = made.plan()
    hidden = [move for move in plan.moves if move.reason == _IMPLICIT]
    if strict and hidden:
        shown = "; ".join(
            f"{program.values[move.value].name} from {move.source} to {move.target} at {move.line}, {move.bytes} bytes"
            for move in hidden
        )
        raise InvalidArgument(
            f"sharding.complete: strict, and the program changes layouts that no annotation mentions: {shown}. "
            "Annotate these arrays, or leave strict out."
        )
    return plan


class _Completion:
    """The walk over a program that makes its plan."""

    def __init__(
        self, program: Program, mesh: Mesh, annotations: Mapping[str, Annotation] | None
    ) -> None:
        self._program = program
        self._mesh = mesh
        self._layouts = Layouts(program, mesh, annotations)
        self._made: list[Move | Compute] = []
        self._at: dict[int, list[Spec]] = {}  # the layouts in which a value is there already
        self._notes: dict[str, None] = {}
        self._used = {number for operation in program.operations for number in operation.inputs}

    def plan(self) -> Plan:
        stores = self._layouts.stores
        for number, value in enumerate(self._program.values):
            if number in self._program.inputs:
                self._at[number] = [stores.get(number, self._layouts.spec(number))]
            elif value.constant is not None:
                self._at[number] = [Spec((None,) * len(value.shape))]
        given = tuple(self._at[number][0] for number in self._program.inputs)
        for operation in self._program.operations:
            self._add(operation)
        results = tuple(self._result(number) for number in self._program.outputs)
        specs = tuple(self._layouts.spec(number) for number in range(len(self._program.values)))
        return Plan(
            self._program, self._mesh, tuple(self._made), specs, given, results, tuple(self._notes)
        )

    def _add(self, operation: Operation) -> None:
        choice = self._layouts.choose(operation)
        for note in (
            *choice.lost,
            *([f"{operation.note}, {operation.line}"] if operation.note else []),
        ):
            self._notes[note] = None
        inputs = []
        for operand, number in enumerate(operation.inputs):
            dims = _dims_of(
                operation, operand, len(self._program.values[number].shape), choice.axes
            )
            inputs.append(Spec(dims))
            self._bring(number, Spec(dims), operation.line)
        shape = self._program.values[operation.output].shape
        combined = {
            axis: factor.combine
            for factor, axis in zip(operation.factors, choice.axes, strict=True)
            if axis is not None and factor.combine
        }
        made = Spec(_dims_of(operation, OUTPUT, len(shape), choice.axes), tuple(combined))
        self._made.append(Compute(operation, tuple(inputs), made, choice.axes))
        target = self._target(operation.output, made)
        combine = next(iter(combined.values()), "sum")
        self._move(
            operation.output,
            made,
            target,
            _SUM if combined else _ANNOTATION,
            operation.line,
            combine,
        )
        self._at[operation.output] = [target]

    def _target(self, number: int, made: Spec) -> Spec:
        """Where the result of an operation goes at once."""
        if number in self._layouts.stores and number not in self._used:
            return self._layouts.stores[number]
        if self._layouts.is_closed(number):
            return self._layouts.spec(number)
        wanted = self._layouts.spec(number)
        dims = tuple(
            own if own is not None or axis not in made.partial else axis
            for own, axis in zip(made.dims, wanted.dims, strict=True)
        )
        self._layouts.settle(number, Spec(dims))
        return Spec(dims)

    def _bring(self, number: int, wanted: Spec, line: str) -> None:
        """The value is there in this layout from now on."""
        there = self._at[number]
        if wanted in there:
            return
        used = self._layouts.spec(number)
        if number in self._layouts.stores and used not in there:
            self._move(number, there[0], used, _STORE, line)
            there.append(used)
        if wanted not in there:
            source = min(
                there,
                key=lambda spec: sum(step.bytes for step in self._steps(number, spec, wanted)),
            )
            self._move(number, source, wanted, _IMPLICIT, line)
            there.append(wanted)

    def _result(self, number: int) -> Spec:
        wanted = self._layouts.stores.get(number, self._layouts.spec(number))
        if wanted not in self._at[number]:
            self._move(number, self._at[number][0], wanted, _STORE, "output")
            self._at[number].append(wanted)
        return wanted

    def _steps(self, number: int, source: Spec, target: Spec) -> list[Step]:
        value = self._program.values[number]
        return steps_between(value.shape, value.dtype.itemsize, source, target, self._mesh)

    def _move(
        self, number: int, source: Spec, target: Spec, reason: str, line: str, combine: str = "sum"
    ) -> None:
        if source != target:
            steps = tuple(self._steps(number, source, target))
            self._made.append(Move(number, source, target, steps, reason, line, combine))


def _dims_of(
    operation: Operation, operand: int, rank: int, axes: tuple[str | None, ...]
) -> tuple[str | None, ...]:
    dims: list[str | None] = [None] * rank
    for factor, axis in zip(operation.factors, axes, strict=True):
        for at, dim in factor.places:
            if at == operand:
                dims[dim] = axis
    return tuple(dims)


def _row(program: Program, step: Move | Compute) -> str:
    if isinstance(step, Compute):
        inputs = [program.values[number] for number in step.operation.inputs]
        shapes = [(value.shape, value.dtype.str) for value in inputs]
        return f"{step.operation.name} {step.operation.inputs} {shapes} {step.axes}"
    return f"{step.value} {step.source} {step.target} {step.combine}"


def _aligned(rows: list[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
