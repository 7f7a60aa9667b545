"""SharedLoss: what a closure returns, made the same on all ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from rabit import Average, Kind, ProcessSet, Sum
from rabit_torch.ops.adasum import Adasum
from rabit_torch.ops.arguments import awaited
from rabit_torch.ops.collectives import allreduce_

__all__ = ["SharedLoss", "shared_loss_of"]


def shared_loss_of(
    optimizer: torch.optim.Optimizer,
    names: Mapping[torch.Tensor, str],
    op: int,
    process_set: ProcessSet,
) -> SharedLoss | None:
    """What `optimizer` needs around the loss; None: it takes the rank's own.  op: of the gradients."""
    is_needed = isinstance(optimizer, torch.optim.LBFGS) and process_set.included()
    if not is_needed or op == Adasum:  # ranks of Adasum step by themselves
        return None
    return SharedLoss(next(iter(names.values())), op, process_set)


class SharedLoss:
    """For an optimizer that decides by the loss how often it evaluates the closure: ranks that evaluate it
    a different number of times wait for each other's gradients."""

    def __init__(self, name: str, op: int, process_set: ProcessSet) -> None:
        """op: of the gradients; a line search holds the loss against them."""
        self._name = f"loss of the closure.{name}"
        self._op = Sum if op == Sum else Average
        self._process_set = process_set

    def __call__(self, loss: Any) -> Any:
        """The mean of what the ranks pass, or the sum; a tensor if `loss` is one.  Blocks."""
        if self._process_set.size() == 1:
            return loss
        with awaited(Kind.ALLREDUCE, self._name, self._process_set):
            number = loss.item() if isinstance(loss, torch.Tensor) else float(loss)
            value = torch.tensor(number, dtype=torch.float64)
        allreduce_(value, None, self._name, self._op, process_set=self._process_set)
        return value.to(loss) if isinstance(loss, torch.Tensor) else value.item()
