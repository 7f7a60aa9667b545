"""Results that the engine allocates, as torch tensors over the same memory."""

from __future__ import annotations

from typing import Any

import torch

import rabit


def tensor_from(handle: rabit.Handle, dtype: torch.dtype) -> torch.Tensor:
    """Returns the output of a finished handle, without a copy; the tensor keeps the memory alive."""
    array: Any = handle.result()
    if dtype == torch.bfloat16:  # NumPy has no such type: the engine hands out its bits
        return torch.from_numpy(array.view("int16")).view(torch.bfloat16)
    return torch.from_numpy(array)
