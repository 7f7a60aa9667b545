"""GradientClip: clipping of gradients that arrive one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

__all__ = ["GradientClip", "clip_values"]


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

    def scale(self, grads: Sequence[torch.Tensor]) -> None:
        """Clips all gradients in place, once each has been measured."""
        if not self._norms:
            return
        with torch.inference_mode(False), torch.no_grad():
            norms = [self._norms[index] for index in sorted(self._norms)]
            total = torch.linalg.vector_norm(torch.stack(norms), self._norm_type)
            self.total_norm = total
            factor = torch.clamp(self._max_norm / (total + 1e-6), max=1.0)
            for grad in grads:
                grad.mul_(factor)

    def apply(self, grads: Sequence[Any]) -> None:
        """Measures and clips gradients that are all there, in order."""
        for index, grad in enumerate(grads):
            self.measure(index, grad)
        self.scale(grads)


def clip_values(grads: Sequence[Any], max_value: float | None) -> None:
    """Limits the magnitude of every element, as torch.nn.utils.clip_grad_value_; None: no limit."""
    if max_value is not None:
        with torch.inference_mode(False), torch.no_grad():
            for grad in grads:
                grad.clamp_(-max_value, max_value)
