"""Training that is divided among the ranks: what DistributedOptimizer(shard=...) returns, and models in parts."""

from typing import TYPE_CHECKING, Any

from rabit_torch.sharding.amp import GradScaler
from rabit_torch.sharding.description import Description, describe
from rabit_torch.sharding.model import gathered, shard, whole
from rabit_torch.sharding.optimizer import ShardedOptimizer
from rabit_torch.sharding.tiles import tiled
from rabit_torch.sharding.universal import load_universal

# DTensor takes a second to load, and few programs use it.
if TYPE_CHECKING:
    from rabit_torch.sharding.placed import distribute, reshardings
else:

    def __getattr__(name: str) -> Any:
        if name not in ("distribute", "reshardings"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from rabit_torch.sharding import placed

        return getattr(placed, name)


__all__ = [
    "Description",
    "GradScaler",
    "ShardedOptimizer",
    "describe",
    "distribute",
    "gathered",
    "load_universal",
    "reshardings",
    "shard",
    "tiled",
    "whole",
]
