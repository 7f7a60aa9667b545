"""Lightning and Fabric on rabit: after `import rabit_torch.lightning`, `strategy="rabit"` is DDP on its backend."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

import rabit_torch.distributed  # noqa: F401  makes the backend known
from rabit import Unsupported

__all__ = ["register"]

# Packages of Lightning's Trainer and of Fabric, and where their strategies are listed.
_REGISTRIES = (
    ("lightning", "lightning.pytorch.strategies", "StrategyRegistry"),
    ("lightning", "lightning.fabric.strategies", "STRATEGY_REGISTRY"),
    ("pytorch_lightning", "pytorch_lightning.strategies", "StrategyRegistry"),
    ("lightning_fabric", "lightning_fabric.strategies", "STRATEGY_REGISTRY"),
)


def register() -> None:
    """Adds the strategy "rabit" to each package of Lightning that is installed.  Idempotent.

    Raises Unsupported if there is none.
    """
    found = [row for row in _REGISTRIES if find_spec(row[0]) is not None]
    if not found:
        raise Unsupported("rabit_torch.lightning needs Lightning. Run: pip install lightning")
    for _, name, registry in found:
        module = import_module(name)
        strategies = getattr(module, registry)
        if "rabit" not in strategies:
            strategies.register(
                "rabit",
                module.DDPStrategy,
                description="DDP on the backend rabit",
                process_group_backend="rabit",
            )


register()
