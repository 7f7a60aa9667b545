"""Gradients that have been sent to their owners and freed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import rabit
from rabit import InvalidArgument
from rabit_mxnet.loaded import mx

__all__ = ["give_away"]


class _Gradients(list[Any]):
    """In place of a parameter's list of gradients: its only one, from the next backward pass on."""

    def __init__(self, parameter: Any) -> None:
        super().__init__([None])
        self._name = parameter.name
        self._data = parameter.data()

    def __iter__(self) -> Iterator[Any]:
        # A hybridised block may have put an array of its own in the place of that which was marked.
        return iter([self._data.grad] if self._data._fresh_grad else [])

    def __getitem__(self, index: Any) -> Any:
        if not self._data._fresh_grad:
            raise InvalidArgument(
                f"the gradient of {self._name!r} on rank {rabit.rank()} has been sent to its owners and freed "
                "(shard='gradients'). Read it between backward() and step(), or use shard='optimizer'"
            )
        return [self._data.grad][index]


def give_away(parameter: Any) -> None:
    """Frees the gradient when the operations that read it have run; the next backward pass makes a new one."""
    data = parameter.data()
    # Its memory is taken when it is first written.
    handle = mx.nd.ndarray._new_alloc_handle(data.shape, data.context, True, data.dtype)
    mx.autograd.mark_variables([data], [type(data)(handle)], parameter.grad_req)
    parameter._grad = _Gradients(parameter)
