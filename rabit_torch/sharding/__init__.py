"""Optimizers whose state, and gradients, are divided among the ranks: what DistributedOptimizer(shard=...) returns."""

from rabit_torch.sharding.optimizer import ShardedOptimizer

__all__ = ["ShardedOptimizer"]
