"""Whether an optimizer gives slices of an array the values that it gives the whole array."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from rabit import InvalidArgument
from rabit_mxnet.loaded import mx

__all__ = ["check_elementwise"]

_SHAPE = (4, 64)
_CUT = 128
_STEPS = 3


def check_elementwise(optimizer: Any, dtype: str) -> None:
    """Raises InvalidArgument for one that looks at whole arrays or counts its calls, as LAMB, LARS and Nadam do.

    A copy of it steps on a small array of this dtype and on its two halves, whose bits are compared.
    """
    kind = type(optimizer).__name__
    try:
        whole, halves = _stepped(optimizer, dtype, 1), _stepped(optimizer, dtype, 2)
    except Exception as error:
        raise InvalidArgument(
            f"shard: {kind} cannot step on a slice of an array: {type(error).__name__}: {error}. Each rank updates "
            "slices: take an optimizer that updates each element by itself, such as SGD or Adam"
        ) from error
    if not np.array_equal(whole, halves):
        raise InvalidArgument(
            f"shard: {kind} gives a slice of an array other values than the whole array, so its results would depend "
            "on the number of ranks. Take an optimizer that updates each element by itself, such as SGD or Adam"
        )


def _stepped(optimizer: Any, dtype: str, parts: int) -> np.ndarray[Any, Any]:
    """A small array after some steps, as a matrix or as `parts` slices."""
    random = np.random.RandomState(0)

    def drawn() -> list[Any]:
        values = random.standard_normal(_SHAPE).astype(dtype)
        pieces = [values] if parts == 1 else np.split(values.reshape(-1), [_CUT])
        return [mx.nd.array(piece, dtype=dtype) for piece in pieces]

    probe = copy.deepcopy(optimizer)
    weights = drawn()
    states = [
        probe.create_state_multi_precision(index, weight) for index, weight in enumerate(weights)
    ]
    for _ in range(_STEPS):
        for index, gradient in enumerate(drawn()):
            probe.update_multi_precision(index, weights[index], gradient, states[index])
    return np.concatenate([weight.asnumpy().reshape(-1) for weight in weights])
