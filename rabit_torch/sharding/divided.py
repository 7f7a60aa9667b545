"""Tensors without values, in place of what no rank has as a whole."""

from __future__ import annotations

from typing import Any

import torch

from rabit import InvalidArgument
from rabit_torch.tensors import METADATA, found_in

__all__ = ["DividedGradient", "DividedTensor", "DividedValues", "divided_gradient", "without_values"]


class DividedTensor(torch.Tensor):
    """A tensor without values: reading it raises an error that names the owners."""

    refusal: str  # with {name}
    rabit_name: str

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in METADATA:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        found = next(found_in(args, (cls,)), None)
        name = "?" if found is None else found.rabit_name
        raise InvalidArgument(cls.refusal.format(name=repr(name)))

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"{type(self).__name__}({self.rabit_name!r}, shape={tuple(self.shape)})"


class DividedGradient(DividedTensor):
    """What stands in `.grad` of a parameter whose gradient is divided among the ranks."""

    refusal = (
        "the gradient of {name} is divided among the ranks (shard=...), and this rank has only a part of "
        "it. Use optimizer.clip_grad_norm_() to clip and optimizer.part(parameter).grad for this rank's part"
    )


class DividedValues(DividedTensor):
    """What `.detach()` and `.data` of a divided parameter give outside of a forward pass."""

    refusal = (
        "the values of {name} are divided among the ranks (shard='parameters'), and this rank has only a part "
        "of them. On every rank: whole(parameter) of rabit_torch.sharding gives all, and gathered(model) is a "
        "context in which they can be read"
    )


def divided_gradient(parameter: torch.Tensor, name: str) -> torch.Tensor:
    """For `parameter.grad`: its shape and type, and the memory of one element."""
    return without_values(parameter, name, DividedGradient)


def without_values(
    parameter: torch.Tensor, name: str, kind: type[DividedTensor] = DividedValues
) -> torch.Tensor:
    """A tensor of the shape and type of `parameter` that refuses to be read."""
    one = torch.zeros((), dtype=parameter.dtype, device=parameter.device)
    found = one.expand(parameter.shape).as_subclass(kind)
    found.rabit_name = name
    return found
