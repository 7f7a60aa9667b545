"""Hooks of parameters: they report to their owner that autograd has finished a gradient."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["GradientHooks"]


class GradientHooks:
    """The hooks of one owner on the gradients of parameters.  They are removed when the owner goes.

    A hook must not hold the owner: a parameter that lives longer would keep it.
    """

    def __init__(self, owner: object) -> None:
        self._handles: list[Any] = []  # which hold neither the parameters nor the hooks
        weakref.finalize(owner, _remove, self._handles).atexit = False

    def add(self, parameter: torch.Tensor, hook: Callable[[torch.Tensor], None]) -> None:
        """Registers `hook`, on a frozen parameter too: the first gradient after a thaw must not be missed."""
        is_frozen = not parameter.requires_grad
        if is_frozen and (parameter.is_inference() or not _may_have_gradient(parameter)):
            return  # It cannot be thawed.
        register: Any = parameter.register_post_accumulate_grad_hook
        parameter.requires_grad_(True)  # Torch registers hooks on such parameters only.
        try:
            self._handles.append(register(hook))
        finally:
            parameter.requires_grad_(not is_frozen)

    def remove(self) -> None:
        """Removes all hooks now."""
        _remove(self._handles)


def _remove(handles: list[Any]) -> None:
    while handles:
        handles.pop().remove()


def _may_have_gradient(parameter: torch.Tensor) -> bool:
    return parameter.is_floating_point() or parameter.is_complex()
