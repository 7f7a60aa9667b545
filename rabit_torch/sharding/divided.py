"""What stands in `.grad` of a parameter whose gradient is divided among the ranks."""

from __future__ import annotations

from typing import Any

import torch

from rabit import InvalidArgument

__all__ = ["DividedGradient", "divided_gradient"]

# What asks for the kind of a tensor and not for its values; code that looks at a gradient's type goes on.
_HARMLESS = {
    *(
        getattr(torch.Tensor, name).__get__
        for name in ("shape", "dtype", "device", "layout", "is_sparse")
    ),
    torch.Tensor.size,
    torch.Tensor.dim,
    torch.Tensor.numel,
}


class DividedGradient(torch.Tensor):
    """A tensor without values: whoever reads it learns who has them, in place of a local gradient."""

    rabit_name: str

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in _HARMLESS:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        name = next((each.rabit_name for each in _tensors(args) if isinstance(each, cls)), "?")
        raise InvalidArgument(
            f"the gradient of {name!r} is divided among the ranks (shard=...), and this rank has only a part of "
            "it. Use optimizer.clip_grad_norm_() to clip and optimizer.part(parameter).grad for this rank's part"
        )


def divided_gradient(parameter: torch.Tensor, name: str) -> DividedGradient:
    """For `parameter.grad`: its shape and type, and the memory of one element."""
    one = torch.zeros((), dtype=parameter.dtype, device=parameter.device)
    found = one.expand(parameter.shape).as_subclass(DividedGradient)
    found.rabit_name = name
    return found


def _tensors(values: Any) -> list[Any]:
    found: list[Any] = []
    for value in values:
        found += _tensors(value) if isinstance(value, (list, tuple)) else [value]
    return found
