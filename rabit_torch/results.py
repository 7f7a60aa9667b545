"""Results that the engine allocates, in the memory of the host, as torch tensors."""

from __future__ import annotations

from typing import Any

import torch

import rabit


def tensor_from(handle: rabit.Handle, like: torch.Tensor) -> torch.Tensor:
    """Returns the output of a finished handle with the type of `like`, on the device of `like`.

    On the CPU it is the engine's memory, without a copy; the tensor keeps it alive.
    """
    return tensor_of(handle.result(), like)


def tensor_of(array: Any, like: torch.Tensor) -> torch.Tensor:
    """The same of an output, a NumPy array; one in the memory of the host is shared."""
    if (
        str(like.dtype) != f"torch.{array.dtype}"
    ):  # NumPy has no such type: the engine hands out its bits
        array = array.view(f"int{8 * array.itemsize}")
    made = torch.from_numpy(array).view(like.dtype)
    return made if like.is_cpu else like.new_empty(made.shape).copy_(made)
