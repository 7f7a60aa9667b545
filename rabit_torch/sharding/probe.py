"""Whether an optimizer gives slices of a tensor the values that it gives the whole tensor."""

from __future__ import annotations

import copy
from collections import OrderedDict, defaultdict
from typing import Any

import torch

from rabit import InvalidArgument

__all__ = ["check_elementwise"]

_SHAPE = (4, 64)
_CUT = 128
_STEPS = 3


def check_elementwise(optimizer: torch.optim.Optimizer) -> int:
    """Returns the bytes of the optimizer's state for each element.

    Raises InvalidArgument for one that looks at whole tensors, as Adafactor, LAMB, Muon and LBFGS do.

    A copy of it steps on a small tensor and on its two halves, whose bits are compared.
    """
    kind = type(optimizer).__name__
    state_bytes = 0
    for group in optimizer.param_groups:
        try:
            (whole, size), (halves, _) = _stepped(optimizer, group, 1), _stepped(optimizer, group, 2)
        except Exception as error:
            raise InvalidArgument(
                f"shard: {kind} cannot step on a slice of a tensor: {type(error).__name__}: {error}. Each rank "
                "updates slices: take an optimizer that updates each element by itself, such as SGD or AdamW"
            ) from error
        if not torch.equal(whole, halves):
            raise InvalidArgument(
                f"shard: {kind} gives a slice of a tensor other values than the whole tensor, so its results would "
                "depend on the number of ranks. Take an optimizer that updates each element by itself, such as "
                "SGD or AdamW"
            )
        state_bytes = max(state_bytes, size // whole.numel())
    return state_bytes


def _stepped(optimizer: torch.optim.Optimizer, group: dict[str, Any], parts: int) -> tuple[torch.Tensor, int]:
    """A small tensor after some steps, as a matrix or as `parts` slices, and bytes of the state."""
    first = next(iter(group["params"]), None)
    dtype = torch.float32 if first is None else first.dtype
    device = torch.device("cpu") if first is None or first.is_meta else first.device
    random = torch.Generator().manual_seed(0)

    def drawn() -> torch.Tensor:
        return torch.randn(_SHAPE, generator=random).to(device=device, dtype=dtype)

    start = drawn()
    tensors = (
        [start.clone()]
        if parts == 1
        else [part.clone() for part in torch.split(start.flatten(), _CUT)]
    )
    slices = [torch.nn.Parameter(tensor) for tensor in tensors]
    probe = copy.copy(optimizer)
    # The state of the optimizer, its hooks, and a `step` that a scheduler has wrapped stay its own.
    own = {key: value for key, value in vars(optimizer).items() if key != "step"}
    for key, value in own.items():
        if isinstance(value, OrderedDict):
            own[key] = OrderedDict()
    probe.__dict__.clear()
    probe.__dict__.update(own, state=defaultdict(dict), param_groups=[{**group, "params": slices}])
    for _ in range(_STEPS):
        gradient = drawn()
        pieces = [gradient] if parts == 1 else list(torch.split(gradient.flatten(), _CUT))
        for each, piece in zip(slices, pieces, strict=True):
            each.grad = piece.clone()
        probe.step()
    states = [value for own in probe.state.values() for value in own.values() if isinstance(value, torch.Tensor)]
    size = sum(value.nbytes for value in states if value.dim())
    return torch.cat([each.detach().flatten() for each in slices]), size
