"""LearningRates: of each parameter, by the groups that its optimizer has at that moment."""

from __future__ import annotations

from typing import Optional

import torch

__all__ = ["LearningRates"]


class LearningRates:
    """Reads them from `param_groups` at each use: load_state_dict() puts other groups there, in the same order."""

    def __init__(self, optimizer: Optional[torch.optim.Optimizer]) -> None:  # noqa: UP045
        self._optimizer = optimizer
        self._group_of: dict[int, int] = {}
        self.learn()

    def learn(self) -> None:
        """Parameters may have been added."""
        groups = [] if self._optimizer is None else self._optimizer.param_groups
        for number, group in enumerate(groups):
            self._group_of.update({id(parameter): number for parameter in group["params"]})

    def of(self, parameter: torch.Tensor) -> float:
        """1 where the optimizer has none for it."""
        number = self._group_of.get(id(parameter))
        if self._optimizer is None or number is None:
            return 1.0
        return float(self._optimizer.param_groups[number].get("lr", 1.0))
