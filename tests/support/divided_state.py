"""A divided state that one job saves and the next restores."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import rabit_torch
from rabit_torch import sharding


def trained_or_restored(
    folder: Path, model: torch.nn.Module, optimizer: Any, backward: Callable[..., None]
) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Whole values and state after three steps, which the first job takes and saves, and later ones restore."""
    with rabit_torch.Checkpoint(folder, model=model, optimizer=optimizer) as checkpoint:
        if checkpoint.restore() is None:
            for step in range(3):
                backward(model, rabit_torch.rank(), step)
                optimizer.step()
                optimizer.zero_grad()
            checkpoint.save(step=3)
    with sharding.gathered(model):
        values = {name: value.clone() for name, value in model.state_dict().items()}
    return values, optimizer.state_dict(whole=True)["state"]
