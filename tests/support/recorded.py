"""What an exchange makes of gradients, step by step."""

from __future__ import annotations

from typing import Any

import numpy as np

import rabit.strategies as methods

__all__ = ["recording_trainer"]


def recording_trainer(
    engine: Any, exchange: methods.Exchange, like: np.ndarray
) -> tuple[methods.ArrayTrainer, list[np.ndarray]]:
    """A trainer of one parameter "w", and the list to which each of its steps adds what came of the gradient."""
    found: list[np.ndarray] = []
    trainer = methods.ArrayTrainer(
        {"w": np.zeros_like(like)},
        methods.Synchronous(exchange),
        lr=1.0,
        update=lambda slot: found.append(slot.grad),
        engine=engine,
    )
    return trainer, found
