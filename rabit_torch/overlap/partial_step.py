"""PartialStep: the user's own optimizer, stepping some of its parameters."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from rabit_torch.parameter_state import DeferredUpdate, HyperParameters

__all__ = ["PartialStep", "why_coupled"]

_OPTIMIZER_MODULE = sys.modules[torch.optim.Optimizer.__module__]


def why_coupled(optimizer: torch.optim.Optimizer) -> str | None:
    """Why the parameters of `optimizer` cannot be updated one by one; None: they can."""
    kind = type(optimizer)
    if isinstance(optimizer, torch.optim.LBFGS):
        return "LBFGS evaluates a closure and combines all parameters in one direction"
    if any(group.get("differentiable") for group in optimizer.param_groups):
        return "differentiable=True keeps a graph through all updates of a step"
    maker = next(each for each in kind.__mro__ if "step" in each.__dict__)
    if maker.__module__.split(".")[:2] == ["torch", "optim"]:
        return None
    if getattr(optimizer, "rabit_separable", False):
        return None
    return (
        f"step() of {maker.__module__}.{maker.__qualname__} is not torch's own, so it may look at all "
        "parameters together. If it treats every parameter by itself, say so with the class "
        "attribute rabit_separable = True"
    )


class PartialStep:
    """Runs step() of an optimizer on some of its parameters.

    The code is the optimizer's own; its state stays where it is, under the parameter.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        step: Any = type(optimizer).step
        if getattr(step, "hooked", False):  # Torch's wrapper, which runs the hooks of whole steps.
            step = step.__wrapped__
        self._step: Callable[[torch.optim.Optimizer], Any] = step

    def hyper_parameters(self) -> HyperParameters:
        """A copy of the hyper-parameters as they are now."""
        return [
            {
                key: value.clone()
                if isinstance(value, torch.Tensor)
                else list(value)
                if isinstance(value, list)
                else value
                for key, value in group.items()
                if key != "params"
            }
            for group in self._optimizer.param_groups
        ]

    def update(self, updates: Sequence[DeferredUpdate], hyper_parameters: HyperParameters) -> None:
        """Updates parameters with the gradients and hyper-parameters of their step.  Not guarded."""
        groups: dict[int, list[torch.Tensor]] = {}
        for update in updates:
            groups.setdefault(update.param_group, []).append(update.state.parameter)
        states = [update.state for update in updates]
        before = [state.parameter.grad for state in states]
        for state in states:
            state.parameter.grad = state.grad
        try:
            self.run(groups, hyper_parameters)
        finally:
            for state, grad in zip(states, before, strict=True):
                state.parameter.grad = grad

    def run(self, groups: dict[int, list[torch.Tensor]], hyper_parameters: HyperParameters) -> None:
        """Steps the parameters of `groups` (by number of their group) with their own `.grad`."""
        optimizer = self._optimizer
        all_groups = optimizer.param_groups
        optimizer.param_groups = [
            {**hyper_parameters[number], "params": parameters}
            for number, parameters in groups.items()
        ]
        try:
            with _as_in_step():
                self._step(optimizer)
        finally:
            optimizer.param_groups = all_groups

    def hooks(self, when: str) -> None:
        """Calls the hooks of whole steps.  when: "pre" or "post"."""
        everywhere = getattr(_OPTIMIZER_MODULE, f"_global_optimizer_{when}_hooks")
        own = getattr(self._optimizer, f"_optimizer_step_{when}_hooks")
        for hook in [*everywhere.values(), *own.values()]:
            hook(self._optimizer, (self._optimizer,), {})


@contextlib.contextmanager
def _as_in_step() -> Iterator[None]:
    """The modes of a step(), whatever the code does that reads the parameter.

    State that is made in inference mode could never be updated outside of it.
    """
    with contextlib.ExitStack() as stack:
        if torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(False))
        if torch.is_autocast_enabled("cpu"):
            stack.enter_context(torch.autocast("cpu", enabled=False))
        stack.enter_context(torch.no_grad())
        yield
