"""Parameters whose values are on their way: the first operation that reads one waits for them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch

from rabit_torch.tensors import METADATA_AND_GRADIENT, found_in

__all__ = ["ExpectedParameter", "arrived", "expect"]


class ExpectedParameter(torch.nn.Parameter):
    """A parameter whose values have not arrived."""

    rabit_finish: Callable[[], None]

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in METADATA_AND_GRADIENT:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        for parameter in found_in((args, kwargs), (cls,)):  # Of those that travel together the first finishes all.
            parameter.rabit_finish()
        return func(*args, **kwargs)

    def __deepcopy__(self, memo: Any) -> Any:
        self.rabit_finish()
        return copy.deepcopy(self, memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        self.rabit_finish()
        return self.__reduce_ex__(protocol)


def expect(parameter: torch.Tensor, finish: Callable[[], None]) -> None:
    """From here on `finish` is called before the values are read. Not for subclasses of Parameter."""
    if type(parameter) is not torch.nn.Parameter:
        return
    changed: Any = parameter
    changed.__class__ = ExpectedParameter
    changed.rabit_finish = finish


def arrived(parameter: torch.Tensor) -> None:
    """Ends `expect`; does nothing without it."""
    if type(parameter) is ExpectedParameter:
        changed: Any = parameter
        changed.__class__ = torch.nn.Parameter
        del changed.rabit_finish
