"""Hooks of parameters: they tell a reducer that autograd has finished a gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch
from torch.compiler import is_compiling

from rabit_torch.parameter_state import ParameterState

__all__ = ["make_hook", "remove_hooks"]


class Arrivals(Protocol):
    """Who is told; see GradientArrivals."""

    def arrived(self, index: int) -> None:
        """Autograd has finished adding to the gradient of the parameter with this index."""


def remove_hooks(states: Iterable[ParameterState]) -> None:
    """Nobody is told of the gradients of these any more."""
    for state in states:
        if state.hook is not None:
            state.hook.remove()
            state.hook = None


def make_hook(reducer: Callable[[], Arrivals | None], index: int) -> Callable[[torch.Tensor], None]:
    """The hook of one parameter, for register_post_accumulate_grad_hook.

    reducer: a weak reference; the parameter may live longer.  index: of the parameter, which its own hook must not
    hold: Python's collector of garbage does not see into autograd, and the model would stay for ever.
    """

    def arrived(parameter: torch.Tensor) -> None:
        alive = reducer()
        if alive is not None:
            alive.arrived(index)

    # Compiled autograd must not trace into the engine, nor into what this calls.  Outside of a
    # trace the opaque form would cost as much as the rest of the hook.
    disable: Any = torch.compiler.disable
    opaque: Callable[[torch.Tensor], None] = disable(arrived)

    def hook(parameter: torch.Tensor) -> None:
        if is_compiling():
            opaque(parameter)
        else:
            arrived(parameter)

    return hook
