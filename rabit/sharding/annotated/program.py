"""Program: the values and operations of one run of a function, and the factors of each operation.

A factor is a dimension that several operands of an operation share, as a letter of an einsum is: what divides it in one
operand can divide it in all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

__all__ = ["OUTPUT", "Annotation", "Factor", "Local", "Operation", "Program", "Run", "Value"]

OUTPUT = -1  # the operand that an operation makes


class Factor(NamedTuple):
    """A dimension that operands share.

    places: (operand, dimension) of each occurrence; OUTPUT is the result. size: its length.
    combine: how results of parts are combined where the result lacks the dimension: "sum", "max" or "min".
    multiple: the factor can be divided into n parts only if n divides this; 0: into any number.
    """

    places: tuple[tuple[int, int], ...]
    size: int
    combine: str = ""
    multiple: int = 0


class Local(NamedTuple):
    """What a rank knows when it runs its part of an operation.

    shape: of its part of the result. intervals: (start, end) of its part of each factor.
    """

    shape: tuple[int, ...]
    intervals: tuple[tuple[int, int], ...]


Run = Callable[[Local, Sequence[Any]], Any]


@dataclass(frozen=True)
class Operation:
    """One step of a program.

    inputs, output: numbers of values. run: computes the part of a rank from parts of the inputs. line: of the user's
    program. is_elementwise: every factor is in every operand. note: why its operands cannot be divided; "": they can.
    """

    name: str
    inputs: tuple[int, ...]
    output: int
    factors: tuple[Factor, ...]
    run: Run = field(repr=False)
    line: str
    is_elementwise: bool = False
    note: str = ""

    def value(self, operand: int) -> int:
        """The number of the value of an operand."""
        return self.output if operand == OUTPUT else self.inputs[operand]


@dataclass(frozen=True)
class Annotation:
    """What a user says of a value: how operations use it, and how it is stored between them; see `annotate`."""

    use: tuple[str | None, ...] | None = None
    store: tuple[str | None, ...] | None = None


@dataclass
class Value:
    """An array of a program. constant: its elements where the program holds them itself."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    constant: Any = field(default=None, repr=False)


@dataclass
class Program:
    """What a function does with arrays of given shapes: its values, operations, and annotations in the order given.

    inputs, outputs: numbers of values. Names of values are unique.
    """

    values: list[Value] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    annotations: list[tuple[int, Annotation]] = field(default_factory=list)

    def add(
        self,
        name: str,
        shape: Sequence[int],
        dtype: Any,
        constant: Any = None,
        is_input: bool = False,
    ) -> int:
        """A new value; its number. A name that is taken gets a number behind it."""
        taken = {value.name for value in self.values}
        unique, count = name, 2
        while unique in taken:
            unique, count = f"{name}.{count}", count + 1
        self.values.append(Value(unique, tuple(shape), np.dtype(dtype), constant))
        number = len(self.values) - 1
        if is_input:
            self.inputs.append(number)
        return number

    def number_of(self, name: str) -> int:
        """The number of the value of this name. Raises KeyError if there is none."""
        for number, value in enumerate(self.values):
            if value.name == name:
                return number
        raise KeyError(name)
