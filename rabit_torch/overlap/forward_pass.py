"""Whether code runs in a forward pass that trains."""

from __future__ import annotations

import sys
from types import FrameType

import torch

__all__ = ["is_forward_pass"]

_CALL = torch.nn.Module._call_impl.__code__


def is_forward_pass() -> bool:
    """True where gradients are recorded, or anywhere within a module called in training mode.

    A custom autograd.Function and reentrant checkpointing turn gradients off around the forward pass;
    evaluation does so too, but its modules are all in evaluation mode, and what logs a parameter is
    not called by one.  Every module on the stack counts, because a model that trains may hold layers
    in evaluation mode, such as batch norms with fixed statistics.
    """
    if torch.is_grad_enabled():
        return True
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code is _CALL and frame.f_locals["self"].training:
            return True
        frame = frame.f_back
    return False
