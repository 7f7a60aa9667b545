"""Training that is divided among the ranks: what DistributedOptimizer(shard=...) returns, and models in parts."""

from rabit_torch.sharding.amp import GradScaler
from rabit_torch.sharding.model import Description, describe, gathered, shard, whole
from rabit_torch.sharding.optimizer import ShardedOptimizer
from rabit_torch.sharding.universal import load_universal

__all__ = [
    "Description",
    "GradScaler",
    "ShardedOptimizer",
    "describe",
    "gathered",
    "load_universal",
    "shard",
    "whole",
]
