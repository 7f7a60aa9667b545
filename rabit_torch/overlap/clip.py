"""GradientClip: clipping of gradients that arrive one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

__all__ = ["GradientClip", "clip_values", "late_norm"]

_no_torch_function: Any = torch._C.DisableTorchFunctionSubclass


class GradientClip:
    """What torch.nn.utils.clip_grad_norm_ does, to the gradients of one step.

    max_norm: largest norm of all gradients together, of type norm_type.
    """

    def __init__(self, max_norm: float, norm_type: float = 2.0) -> None:
        self._max_norm = max_norm
        self._norm_type = norm_type
        self._norms: dict[int, torch.Tensor] = {}
        self.total_norm: torch.Tensor | None = None

    def measure(self, index: int, grad: torch.Tensor) -> None:
        """Takes the norm of one gradient; index: its place, for the order of the sum."""
        with torch.inference_mode(False), torch.no_grad():
            self._norms[index] = torch.linalg.vector_norm(grad, self._norm_type)

    def norm_of(self, grads: Sequence[Any]) -> torch.Tensor:
        """The norm of gradients that are all there, which stay as they are."""
        for index, grad in enumerate(grads):
            self.measure(index, grad)
        return self._total()

    def _total(self) -> torch.Tensor:
        with torch.inference_mode(False), torch.no_grad():
            norms = [self._norms[index] for index in sorted(self._norms)]
            return torch.linalg.vector_norm(torch.stack(norms), self._norm_type) if norms else torch.zeros(())

    def scale(self, grads: Sequence[torch.Tensor]) -> None:
        """Clips all gradients in place, once each has been measured."""
        self.total_norm = self._total()
        with torch.inference_mode(False), torch.no_grad():
            factor = torch.clamp(self._max_norm / (self.total_norm + 1e-6), max=1.0)
            for grad in grads:
                grad.mul_(factor)

    def apply(self, grads: Sequence[Any]) -> None:
        """Measures and clips gradients that are all there, in order."""
        self._norms.clear()
        self.norm_of(grads)
        self.scale(grads)


def clip_values(grads: Sequence[Any], max_value: float | None) -> None:
    """Limits the magnitude of every element, as torch.nn.utils.clip_grad_value_; None: no limit."""
    if max_value is not None:
        with torch.inference_mode(False), torch.no_grad():
            for grad in grads:
                grad.clamp_(-max_value, max_value)


def late_norm(find: Callable[[], torch.Tensor]) -> torch.Tensor:
    """A tensor of no dimension whose value `find` gives when something reads it, and not before."""
    found = torch.zeros(()).as_subclass(_LateNorm)
    found.find = find
    return found


class _LateNorm(torch.Tensor):
    """Becomes a plain tensor when it is read."""

    find: Callable[[], torch.Tensor]

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        for value in tree_leaves((args, kwargs)):
            if type(value) is _LateNorm:
                value._become_plain()
        return func(*args, **kwargs)

    def _become_plain(self) -> None:
        norm = self.find()
        with _no_torch_function():
            self.data = norm
            del self.find
            self.__class__ = torch.Tensor  # type: ignore[assignment]
