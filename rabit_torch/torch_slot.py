"""TorchSlot: a torch parameter as gradient methods see it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from rabit.framework import Array
from rabit_torch.tensors import on_host

__all__ = ["TorchSlot", "with_arrays", "with_tensors"]

_no_torch_function: Any = torch._C.DisableTorchFunctionSubclass


class TorchSlot:
    """One parameter as methods see it: NumPy arrays, over torch's memory or copied from a device;
    16-bit floats as float32."""

    def __init__(
        self,
        name: str,
        parameter: torch.Tensor,
        priority: Callable[[], int],
        rate: Callable[[], float],
    ) -> None:
        """priority, rate: tell the urgency and the learning rate of the moment."""
        self.name = name
        self.grad: Any = None
        self.state: Any = None
        self.is_result = False
        self._parameter = parameter
        self._priority = priority
        self._rate = rate
        self._gradient: torch.Tensor | None = None
        self._known: Any = None  # what the gradient's memory holds

    @property
    def value(self) -> Array:
        # As it is: where updates are put off, reading waits for the parameter's own, and that for who reads here.
        with _no_torch_function():
            return _array(self._parameter)

    @value.setter
    def value(self, array: Array) -> None:
        _copy(self._parameter, array)

    @property
    def is_frozen(self) -> bool:
        return not self._parameter.requires_grad

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self._parameter.shape) or (1,)

    @property
    def dtype(self) -> np.dtype[Any]:
        wide = self._parameter.dtype == torch.float64
        return np.dtype(np.float64 if wide else np.float32)

    @property
    def priority(self) -> int:
        return self._priority()

    @property
    def lr(self) -> float:
        return self._rate()

    def take(self, gradient: torch.Tensor) -> None:
        """What travels is `gradient`; `write_back` goes there."""
        self._gradient = gradient
        self.grad = self._known = _array(gradient)
        self.is_result = _address(self.grad) == gradient.data_ptr()

    def write_back(self) -> None:
        """Puts what the optimizer is to use into the gradient."""
        if self._gradient is not None and self.grad is not self._known:
            if _address(self.grad) != self._gradient.data_ptr():
                _copy(self._gradient, self.grad)
            self._known = self.grad

    def forget(self) -> None:
        """The step has ended."""
        self._gradient = self.grad = self._known = None


def _array(tensor: torch.Tensor) -> Array:
    """The elements in row-major order; the tensor's own memory where they lie so on the CPU."""
    dense = tensor.detach()
    if dense.dim() == 0:
        dense = dense.reshape(1)
    if dense.dtype not in (torch.float32, torch.float64):
        dense = dense.float()
    array: Array = on_host(dense.contiguous()).numpy()
    return array


def _address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def _copy(target: torch.Tensor, array: Array) -> None:
    with torch.no_grad():
        target.detach().copy_(torch.from_numpy(np.ascontiguousarray(array).reshape(target.shape)))


def with_tensors(saved: Mapping[str, Any]) -> dict[str, Any]:
    """What a pipeline has saved, with tensors in place of arrays."""
    return _mapped(saved, lambda each: _tensor(each) if isinstance(each, np.ndarray) else each)


def with_arrays(saved: Mapping[str, Any]) -> dict[str, Any]:
    """What a pipeline loads, of what `with_tensors` gave."""
    return _mapped(saved, lambda each: each.numpy() if isinstance(each, torch.Tensor) else each)


def _tensor(array: Array) -> torch.Tensor:
    return torch.from_numpy(np.array(array))


def _mapped(saved: Mapping[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    if not isinstance(saved, Mapping):
        return saved  # What is wrong is for the pipeline to say.
    found = dict(saved)
    for scope in ("replicated", "local"):
        if isinstance(saved.get(scope), Mapping):
            found[scope] = {path: change(value) for path, value in saved[scope].items()}
    return found
