"""Trace: runs a NumPy function on shapes, and notes what it does."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rabit.errors import InvalidArgument, Unsupported
from rabit.sharding.annotated import operations
from rabit.sharding.annotated.program import Annotation, Operation, Program

__all__ = ["Traced", "annotate", "trace"]

_LIBRARIES = (str(Path(__file__).parent), str(Path(np.__file__).parent))


def trace(function: Callable[..., Any], *arrays: Any, **named: Any) -> Program:
    """What `function` does with arrays of these shapes and dtypes; runs it once, without computing anything.

    arrays, named: arguments of the function, anything with `shape` and `dtype`; or shapes, as tuples, of float32.
    The function uses NumPy on them, and may call `annotate`. It returns an array, a sequence of arrays, or a dict of
    them, whose keys then name the outputs. It must not branch on their elements: that raises Unsupported.
    """
    program = Program()
    names = [parameter.name for parameter in inspect.signature(function).parameters.values()]
    given = [
        _input(program, names[i] if i < len(names) else f"argument{i}", array)
        for i, array in enumerate(arrays)
    ]
    by_name = {name: _input(program, name, array) for name, array in named.items()}
    result = function(*given, **by_name)
    if isinstance(result, Mapping):
        for name, value in result.items():
            _output(program, value, name)
    else:
        for value in result if isinstance(result, (list, tuple)) else [result]:
            _output(program, value, "")
    return program


def annotate(
    value: Any,
    use: Sequence[str | None] | None = None,
    *,
    store: Sequence[str | None] | None = None,
) -> Any:
    """Says how `value` lies on the mesh; returns it.

    use: for each dimension the axis that divides it in operations, or None where it is whole; without `use` it is
    inferred, but for a value with `store`, which is then used whole.
    store: how the value is kept between operations: an input is gathered from that before its first use, and an
    output is scattered into it, as ZeRO stage 3 does with parameters and gradients. It does not propagate.
    An array that is not being traced is returned as it is.
    """
    if isinstance(value, Traced):
        said = Annotation(
            None if use is None else tuple(use), None if store is None else tuple(store)
        )
        value.program.annotations.append((value.number, said))
    return value


class Traced(np.lib.mixins.NDArrayOperatorsMixin):
    """An array without elements: operations on it are noted in a program. One thread at a time."""

    def __init__(self, program: Program, number: int) -> None:
        self.program = program
        self.number = number

    def __repr__(self) -> str:
        return f"Traced({self._value.name}, shape={self.shape}, dtype={self.dtype})"

    @property
    def _value(self) -> Any:
        return self.program.values[self.number]

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the dimensions."""
        return tuple(self._value.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the elements."""
        found: np.dtype[Any] = self._value.dtype
        return found

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def T(self) -> Any:
        """With the dimensions in reverse."""
        return self.transpose()

    def __len__(self) -> int:
        return self.shape[0]

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        if method == "reduce" and ufunc in operations.REDUCTIONS:
            return _noted(operations.REDUCTIONS[ufunc], ufunc.__name__, inputs, options)
        if method != "__call__" or ufunc.nout != 1:
            suffix = "" if method == "__call__" else f".{method}"
            raise self._unsupported(f"numpy.{ufunc.__name__}{suffix}")
        if ufunc is np.matmul:
            return _noted(operations.matmul, "matmul", inputs, options)
        return _noted(operations.elementwise(ufunc), ufunc.__name__, inputs, options)

    def __array_function__(
        self,
        function: Any,
        types: Iterable[type],
        args: tuple[Any, ...],
        options: Mapping[str, Any],
    ) -> Any:
        name = function.__name__
        build = operations.FUNCTIONS.get(name) or operations.whole(function)
        return _noted(build, name, args, options)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, Traced) or (isinstance(key, np.ndarray) and key.dtype.kind in "iu"):
            return _noted(operations.take, "take", (self, key), {"axis": 0})
        return _noted(operations.index, "index", (self,), {"key": key})

    def __bool__(self) -> bool:
        raise self._unsupported("a branch on its elements (bool)")

    def __float__(self) -> float:
        raise self._unsupported("float()")

    def __array__(self, *args: Any, **options: Any) -> Any:
        raise self._unsupported("a conversion to a NumPy array")

    def _unsupported(self, what: str) -> Unsupported:
        return Unsupported(
            f"sharding.trace: {what} of {self._value.name!r} at {_line()} is not supported: a traced array has a shape "
            "and no elements. Compute it outside of the traced function."
        )

    # Methods of arrays that are also functions of NumPy.

    def sum(self, axis: Any = None, keepdims: bool = False) -> Any:
        """As numpy.sum."""
        return np.sum(self, axis=axis, keepdims=keepdims)

    def mean(self, axis: Any = None, keepdims: bool = False) -> Any:
        """As numpy.mean."""
        return np.mean(self, axis=axis, keepdims=keepdims)

    def max(self, axis: Any = None, keepdims: bool = False) -> Any:
        """As numpy.max."""
        return np.max(self, axis=axis, keepdims=keepdims)

    def min(self, axis: Any = None, keepdims: bool = False) -> Any:
        """As numpy.min."""
        return np.min(self, axis=axis, keepdims=keepdims)

    def transpose(self, *axes: Any) -> Any:
        """As numpy.transpose."""
        order = axes[0] if len(axes) == 1 and isinstance(axes[0], (tuple, list)) else axes or None
        return np.transpose(self, order)

    def reshape(self, *shape: Any) -> Any:
        """As numpy.reshape."""
        wanted = shape[0] if len(shape) == 1 else shape
        return np.reshape(self, wanted)

    def astype(self, dtype: Any) -> Any:
        """As numpy.ndarray.astype."""
        return _noted(operations.cast, "astype", (self,), {"dtype": dtype})


def _input(program: Program, name: str, array: Any) -> Traced:
    shape = array if isinstance(array, tuple) else tuple(array.shape)
    dtype = np.float32 if isinstance(array, tuple) else array.dtype
    return Traced(program, program.add(name, shape, dtype, is_input=True))


def _output(program: Program, value: Any, name: str) -> None:
    if not isinstance(value, Traced):
        raise InvalidArgument(
            f"sharding.trace: the function returned {type(value).__name__}. Return an array that it computes from its "
            "arguments, or a sequence or dict of such arrays."
        )
    program.outputs.append(value.number)
    if name and value.number not in program.inputs:
        program.values[value.number].name = name


def _noted(build: Any, name: str, given: Sequence[Any], options: Mapping[str, Any]) -> Traced:
    """The result of one operation, which is added to the program."""
    line = _line()
    is_join = name in operations.JOINS  # Its arrays come as a list.
    operands = list(given[0]) if is_join else list(given)
    program = next(value.program for value in operands if isinstance(value, Traced))
    operands = [_operand(program, value) for value in operands]
    made = build(operands, *(given[1:] if is_join else ()), **options)
    number = program.add(name, made.shape, made.dtype)
    inputs = tuple(value.number for value in operands if isinstance(value, Traced))
    program.operations.append(
        Operation(
            name, inputs, number, made.factors, made.run, line, made.is_elementwise, made.note
        )
    )
    return Traced(program, number)


def _operand(program: Program, value: Any) -> Any:
    """An array of the program's own becomes a value of it; numbers and options stay."""
    if isinstance(value, np.ndarray) and value.ndim:
        return Traced(program, program.add("constant", value.shape, value.dtype, value))
    return value


def _line() -> str:
    """File and line of the user's program."""
    for frame, number in traceback.walk_stack(None):
        if not frame.f_code.co_filename.startswith(_LIBRARIES):
            return f"{Path(frame.f_code.co_filename).name}:{number}"
    return "?"
