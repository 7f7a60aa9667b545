"""What a program notes of each NumPy function: shape and type of the result, its factors, and how a rank runs its part.

A function that is not here runs on whole arrays on every rank, and the plan says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from rabit.errors import Unsupported
from rabit.sharding.annotated.program import OUTPUT, Factor, Local, Run

__all__ = [
    "FUNCTIONS",
    "JOINS",
    "REDUCTIONS",
    "cast",
    "elementwise",
    "index",
    "matmul",
    "take",
    "whole",
]


class Made(NamedTuple):
    """What is known of an operation once it has been noted."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    factors: tuple[Factor, ...]
    run: Run
    is_elementwise: bool = False
    note: str = ""


def is_array(value: Any) -> bool:
    """True of a traced array, as of NumPy's."""
    return hasattr(value, "program") or (hasattr(value, "shape") and getattr(value, "ndim", 0) > 0)


def elementwise(function: Callable[..., Any]) -> Callable[..., Made]:
    """For a function of arrays that broadcast to each other, which computes every element by itself."""

    def build(operands: Sequence[Any], **options: Any) -> Made:
        _refuse_options(function.__name__, options)
        arrays = [value for value in operands if is_array(value)]
        shape = np.broadcast_shapes(*(array.shape for array in arrays))
        samples = [np.ones((), value.dtype) if is_array(value) else value for value in operands]
        run = _with_constants(function, operands)
        return Made(
            shape, np.asarray(function(*samples)).dtype, _broadcast(arrays, shape), run, True
        )

    return build


def cast(operands: Sequence[Any], dtype: Any) -> Made:
    """numpy.ndarray.astype."""
    (array,) = operands
    return Made(
        array.shape, np.dtype(dtype), _broadcast([array], array.shape),
        lambda _, arrays: arrays[0].astype(dtype), True,
    )  # fmt: skip


def matmul(operands: Sequence[Any], **options: Any) -> Made:
    """numpy.matmul of arrays with one, two or more dimensions."""
    _refuse_options("matmul", options)
    left, right = operands
    rows = ["k"] if left.ndim == 1 else ["m", "k"]
    columns = ["k"] if right.ndim == 1 else ["k", "n"]
    batch = [f"b{i}" for i in range(max(left.ndim, right.ndim) - 2)]
    lefts = [*batch[len(batch) - max(left.ndim - 2, 0) :], *rows]
    rights = [*batch[len(batch) - max(right.ndim - 2, 0) :], *columns]
    out = [*batch, *rows[:-1], *columns[1:]]
    return _contraction([left, right], [lefts, rights], out, lambda _, arrays: np.matmul(*arrays))


def _einsum(operands: Sequence[Any], **options: Any) -> Made:
    subscripts = str(operands[0]).replace(" ", "")
    _refuse_options(
        "einsum", {name: value for name, value in options.items() if name != "optimize"}
    )
    if "." in subscripts or "->" not in subscripts:
        raise Unsupported(
            f"sharding.trace: einsum {subscripts!r} needs letters for all dimensions, and '->'."
        )
    terms, out = subscripts.split("->")
    letters = [list(term) for term in terms.split(",")]
    if any(len(set(term)) < len(term) for term in letters):
        raise Unsupported(
            f"sharding.trace: einsum {subscripts!r} takes a diagonal, which is not supported."
        )
    return _contraction(
        operands[1:],
        letters,
        list(out),
        lambda _, arrays: np.einsum(subscripts, *arrays, optimize=True),
    )


def _tensordot(operands: Sequence[Any], axes: Any = 2) -> Made:
    left, right = operands[:2]
    axes = operands[2] if len(operands) > 2 else axes
    if isinstance(axes, int):
        lefts, rights = list(range(left.ndim - axes, left.ndim)), list(range(axes))
    else:
        lefts, rights = (list(np.atleast_1d(part)) for part in axes)
    names = [f"l{dim}" for dim in range(left.ndim)]
    others = [f"r{dim}" for dim in range(right.ndim)]
    for first, second in zip(lefts, rights, strict=True):
        others[second % right.ndim] = names[first % left.ndim]
    out = [name for name in names if name not in others] + [
        name for name in others if name not in names
    ]
    pairs: Any = (lefts, rights)
    return _contraction(
        [left, right], [names, others], out, lambda _, arrays: np.tensordot(arrays[0], arrays[1], axes=pairs)
    )


def _dot(operands: Sequence[Any], **options: Any) -> Made:
    if max(array.ndim for array in operands) > 2:
        return whole(np.dot)(operands, **options)
    return matmul(operands, **options)


def _contraction(
    arrays: Sequence[Any], names: Sequence[Sequence[str]], out: Sequence[str], run: Run
) -> Made:
    """names: of the dimensions of each array; those that are not in `out` are summed over."""
    sizes: dict[str, int] = {}
    places: dict[str, list[tuple[int, int]]] = {}
    for operand, (array, letters) in enumerate(zip(arrays, names, strict=True)):
        for dim, (letter, length) in enumerate(zip(letters, array.shape, strict=True)):
            if length != 1:  # A length of 1 may be spread over a longer one.
                places.setdefault(letter, []).append((operand, dim))
            sizes[letter] = max(sizes.get(letter, 1), length)
    for dim, letter in enumerate(out):
        places.setdefault(letter, []).append((OUTPUT, dim))
    factors = tuple(
        Factor(tuple(at), sizes[letter], "" if letter in out else "sum")
        for letter, at in places.items()
    )
    dtype = np.result_type(*(array.dtype for array in arrays))
    return Made(tuple(sizes[letter] for letter in out), dtype, factors, run)


def _reduction(name: str, combine: str) -> Callable[..., Made]:
    def build(
        operands: Sequence[Any],
        axis: Any = 0,
        keepdims: bool = False,
        dtype: Any = None,
        **options: Any,
    ) -> Made:
        _refuse_options(name, options)
        array = operands[0]
        axis = operands[1] if len(operands) > 1 else axis
        dims = (
            range(array.ndim)
            if axis is None
            else [int(dim) % array.ndim for dim in np.atleast_1d(axis)]
        )
        kept = [dim for dim in range(array.ndim) if dim not in dims]
        shape = tuple(
            1 if dim in dims else length
            for dim, length in enumerate(array.shape)
            if keepdims or dim in kept
        )
        found = getattr(np, name)(
            np.ones((1,), array.dtype), **({"dtype": dtype} if dtype else {})
        ).dtype
        count = prod(array.shape[dim] for dim in dims)

        def run(_: Local, arrays: Sequence[Any]) -> Any:
            if name == "mean":
                return np.sum(
                    arrays[0], axis=tuple(dims), dtype=found, keepdims=keepdims
                ) / found.type(count)
            extra = {"dtype": found} if name == "sum" else {}
            return getattr(np, name)(arrays[0], axis=tuple(dims), keepdims=keepdims, **extra)

        factors = []
        for dim, length in enumerate(array.shape):
            at = (
                ((0, dim),)
                if dim in dims
                else ((0, dim), (OUTPUT, dim if keepdims else kept.index(dim)))
            )
            factors.append(Factor(at, length, combine if dim in dims else ""))
        return Made(shape, found, tuple(factors), run)

    return build


def _with_default_axis(build: Callable[..., Made]) -> Callable[..., Made]:
    """numpy.sum reduces all dimensions by default, numpy.add.reduce the first one."""

    def built(operands: Sequence[Any], axis: Any = None, **options: Any) -> Made:
        return build(
            operands,
            axis=axis,
            **{name: value for name, value in options.items() if _is_given(value)},
        )

    return built


def _transpose(operands: Sequence[Any], axes: Any = None) -> Made:
    array = operands[0]
    axes = operands[1] if len(operands) > 1 else axes
    order = (
        tuple(range(array.ndim))[::-1]
        if axes is None
        else tuple(int(axis) % array.ndim for axis in axes)
    )
    factors = tuple(
        Factor(((0, source), (OUTPUT, dim)), array.shape[source])
        for dim, source in enumerate(order)
    )
    shape = tuple(array.shape[source] for source in order)
    return Made(shape, array.dtype, factors, lambda _, arrays: np.transpose(arrays[0], order))


def _swapaxes(operands: Sequence[Any]) -> Made:
    array, first, second = operands
    order = list(range(array.ndim))
    order[first], order[second] = order[second], order[first]
    return _transpose([array], tuple(order))


def _reshape(operands: Sequence[Any], shape: Any = None, **options: Any) -> Made:
    _refuse_options(
        "reshape",
        {name: value for name, value in options.items() if name != "order" or value != "C"},
    )
    array = operands[0]
    wanted = options.get("newshape", shape) if len(operands) == 1 else operands[1]
    made = np.broadcast_to(np.zeros(()), array.shape).reshape(wanted).shape
    factors = tuple(_kept_factors(array.shape, made))
    return Made(made, array.dtype, factors, lambda local, arrays: arrays[0].reshape(local.shape))


def _kept_factors(before: Sequence[int], after: Sequence[int]) -> Iterator[Factor]:
    """The outermost dimension of each run of dimensions that a reshape merges or splits."""
    i = j = 0
    while i < len(before) and j < len(after):
        start, end = i, j
        left, right = before[i], after[j]
        while left != right:
            if left < right:
                i += 1
                left *= before[i]
            else:
                j += 1
                right *= after[j]
        is_one = i == start and j == end
        size = min(before[start], after[end])
        if size > 1 and max(before[start], after[end]) % size == 0:
            yield Factor(((0, start), (OUTPUT, end)), size, multiple=0 if is_one else size)
        i, j = i + 1, j + 1


def _expand_dims(operands: Sequence[Any], axis: Any = None) -> Made:
    axis = operands[1] if len(operands) > 1 else axis
    shape = np.expand_dims(np.broadcast_to(np.zeros(()), operands[0].shape), axis).shape
    return _reshape([operands[0], shape])


def _squeeze(operands: Sequence[Any], axis: Any = None) -> Made:
    axis = operands[1] if len(operands) > 1 else axis
    shape = np.squeeze(np.broadcast_to(np.zeros(()), operands[0].shape), axis).shape
    return _reshape([operands[0], shape])


def _broadcast_to(operands: Sequence[Any], shape: Any = None, **options: Any) -> Made:
    _refuse_options("broadcast_to", options)
    array = operands[0]
    wanted = tuple(np.atleast_1d(operands[1] if len(operands) > 1 else shape))
    made = np.broadcast_shapes(array.shape, wanted)
    return Made(
        made,
        array.dtype,
        _broadcast([array], made),
        lambda local, arrays: np.broadcast_to(arrays[0], local.shape),
    )


def _concatenate(operands: Sequence[Any], axis: int = 0) -> Made:
    axis %= operands[0].ndim
    first = operands[0].shape
    shape = (*first[:axis], sum(array.shape[axis] for array in operands), *first[axis + 1 :])
    factors = tuple(
        Factor((*((i, dim) for i in range(len(operands))), (OUTPUT, dim)), length)
        for dim, length in enumerate(first)
        if dim != axis
    )
    dtype = np.result_type(*(array.dtype for array in operands))
    return Made(shape, dtype, factors, lambda _, arrays: np.concatenate(arrays, axis))


def _stack(operands: Sequence[Any], axis: int = 0) -> Made:
    axis %= operands[0].ndim + 1
    first = operands[0].shape
    shape = (*first[:axis], len(operands), *first[axis:])
    factors = tuple(
        Factor((*((i, dim) for i in range(len(operands))), (OUTPUT, dim + (dim >= axis))), length)
        for dim, length in enumerate(first)
    )
    dtype = np.result_type(*(array.dtype for array in operands))
    return Made(shape, dtype, factors, lambda _, arrays: np.stack(arrays, axis))


def take(operands: Sequence[Any], axis: Any = None, **options: Any) -> Made:
    """Rows of a table by their numbers, from 0; where ranks hold other rows, each adds zeros for those of others."""
    _refuse_options("take", options)
    table, numbers = operands[:2]
    axis = operands[2] if len(operands) > 2 else axis
    if axis != 0 or not is_array(numbers):
        return whole(np.take)(operands, axis=axis)
    rank = numbers.ndim
    rows = Factor(((0, 0),), table.shape[0], "sum")
    columns = [
        Factor(((0, dim), (OUTPUT, rank + dim - 1)), table.shape[dim])
        for dim in range(1, table.ndim)
    ]
    places = [Factor(((1, dim), (OUTPUT, dim)), numbers.shape[dim]) for dim in range(rank)]

    def run(local: Local, arrays: Sequence[Any]) -> Any:
        part, wanted = arrays
        start, end = local.intervals[0]
        if end - start == table.shape[0]:
            return np.take(part, wanted, axis=0)
        held = (wanted >= start) & (wanted < end)
        if not len(part):
            return np.zeros(local.shape, table.dtype)
        found = np.take(part, np.where(held, wanted - start, 0), axis=0)
        return np.where(
            held.reshape(held.shape + (1,) * (table.ndim - 1)), found, table.dtype.type(0)
        )

    return Made(numbers.shape + table.shape[1:], table.dtype, (rows, *columns, *places), run)


def index(operands: Sequence[Any], key: Any) -> Made:
    """Basic indexing; dimensions that are taken whole can be divided."""
    (array,) = operands
    keys = list(key) if isinstance(key, tuple) else [key]
    if Ellipsis in [entry for entry in keys if not is_array(entry)]:
        at = keys.index(Ellipsis)
        keys[at : at + 1] = [slice(None)] * (
            array.ndim - sum(entry is not None for entry in keys) + 1
        )
    keys += [slice(None)] * (array.ndim - sum(entry is not None for entry in keys))
    if not all(entry is None or isinstance(entry, (int, slice, np.integer)) for entry in keys):
        return whole(lambda whole_array: whole_array[key], "index")([array])
    shape = np.broadcast_to(np.zeros(()), array.shape)[tuple(keys)].shape
    factors, source, dim = [], 0, 0
    for entry in keys:
        if entry == slice(None):
            factors.append(Factor(((0, source), (OUTPUT, dim)), array.shape[source]))
        source += entry is not None
        dim += entry is None or isinstance(entry, slice)
    return Made(shape, array.dtype, tuple(factors), lambda _, arrays: arrays[0][tuple(keys)])


def whole(function: Callable[..., Any], name: str = "") -> Callable[..., Made]:
    """For a function whose dimensions are not known: it runs on whole arrays on every rank."""
    called = name or f"numpy.{function.__name__}"

    def build(operands: Sequence[Any], **options: Any) -> Made:
        given = [value for value in options.values() if is_array(value) and value is not None]
        if given:
            raise Unsupported(
                f"sharding.trace: {called} with an array as keyword is not supported. Pass it by position."
            )
        samples = [
            np.zeros(value.shape, value.dtype) if is_array(value) else value for value in operands
        ]
        result = function(*samples, **options)
        if not isinstance(result, (np.ndarray, np.generic)):
            raise Unsupported(
                f"sharding.trace: {called} returns {type(result).__name__}, and only functions that return an array "
                "are supported."
            )
        run = _with_constants(function, operands, options)
        return Made(
            result.shape,
            result.dtype,
            (),
            run,
            note=f"{called} is not known to the planner: every rank runs it whole",
        )

    return build


def _broadcast(arrays: Sequence[Any], shape: Sequence[int]) -> tuple[Factor, ...]:
    """One factor for each dimension of the result, in the arrays that have its length."""
    found = []
    for dim, length in enumerate(shape):
        places = [(OUTPUT, dim)]
        for operand, array in enumerate(arrays):
            own = dim - (len(shape) - array.ndim)
            if own >= 0 and array.shape[own] == length:
                places.append((operand, own))
        found.append(Factor(tuple(places), length))
    return tuple(found)


def _with_constants(
    function: Callable[..., Any], operands: Sequence[Any], options: Any = None
) -> Run:
    """Calls `function` with arrays at the places where `operands` has arrays."""
    places = [i for i, value in enumerate(operands) if is_array(value)]
    given = [None if is_array(value) else value for value in operands]

    def run(_: Local, arrays: Sequence[Any]) -> Any:
        args = list(given)
        for place, array in zip(places, arrays, strict=True):
            args[place] = array
        return function(*args, **(options or {}))

    return run


def _is_given(value: Any) -> bool:
    return value is not None and value is not np._NoValue


def _refuse_options(name: str, options: Any) -> None:
    given = [key for key, value in options.items() if _is_given(value) and value is not False]
    if given:
        raise Unsupported(
            f"sharding.trace: numpy.{name} with {', '.join(given)} is not supported. Leave it out."
        )


_SUM, _MEAN = _reduction("sum", "sum"), _reduction("mean", "sum")
_MAX, _MIN = _reduction("max", "max"), _reduction("min", "min")

REDUCTIONS = {np.add: _SUM, np.maximum: _MAX, np.minimum: _MIN}
JOINS = frozenset({"concatenate", "stack"})  # functions of a list of arrays
FUNCTIONS: dict[str, Callable[..., Made]] = {
    "sum": _with_default_axis(_SUM),
    "mean": _with_default_axis(_MEAN),
    "max": _with_default_axis(_MAX),
    "amax": _with_default_axis(_MAX),
    "min": _with_default_axis(_MIN),
    "amin": _with_default_axis(_MIN),
    "where": elementwise(np.where),
    "clip": elementwise(np.clip),
    "einsum": _einsum,
    "tensordot": _tensordot,
    "dot": _dot,
    "transpose": _transpose,
    "swapaxes": _swapaxes,
    "reshape": _reshape,
    "expand_dims": _expand_dims,
    "squeeze": _squeeze,
    "broadcast_to": _broadcast_to,
    "concatenate": _concatenate,
    "stack": _stack,
    "take": take,
}
