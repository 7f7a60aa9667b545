"""Scaling of losses for optimizers whose gradients are divided among the ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import rabit
from rabit_torch.sharding.optimizer import ShardedOptimizer

__all__ = ["GradScaler"]


class GradScaler(torch.amp.GradScaler):
    """torch.amp.GradScaler whose decisions are those of all ranks.

    A rank sees its part of the gradients: where one of them is not finite, all ranks leave out the step and reduce
    the scale. `unscale_` and `step` block until every rank calls them. Works with other optimizers as torch's does.
    """

    def __init__(self, device: str = "cpu", **options: Any) -> None:
        super().__init__(device, **options)

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **options: Any) -> float | None:
        if isinstance(optimizer, ShardedOptimizer):
            optimizer._rabit_has_scaler = True
        found: float | None = super().step(optimizer, *args, **options)
        if isinstance(optimizer, ShardedOptimizer) and optimizer._rabit_gathers is not None:
            overflows = self._per_optimizer_states[id(optimizer)]["found_inf_per_device"]
            if any(overflows.values()):
                optimizer._rabit_gathers.leave_out_step()
        return found

    def _unscale_grads_(
        self,
        optimizer: torch.optim.Optimizer,
        inv_scale: torch.Tensor,
        found_inf: torch.Tensor,
        allow_fp16: bool,
    ) -> dict[torch.device, torch.Tensor]:
        if not isinstance(optimizer, ShardedOptimizer):
            return super()._unscale_grads_(optimizer, inv_scale, found_inf, allow_fp16)
        optimizer.synchronize()
        found = super()._unscale_grads_(optimizer, inv_scale, found_inf, allow_fp16)
        own = np.array([any(bool(value) for value in found.values())], np.uint8)
        anywhere = rabit.allreduce(
            own,
            name=f"{optimizer._rabit_prefix}.overflow",
            op=rabit.Max,
            process_set=optimizer._rabit_levels.everyone,
        )
        return {found_inf.device: torch.full_like(found_inf, float(anywhere[0]))}
