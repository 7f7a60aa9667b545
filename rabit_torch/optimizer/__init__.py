"""DistributedOptimizer: gradients are exchanged while backward runs."""

from rabit_torch.optimizer.distributed_optimizer import DistributedOptimizer

__all__ = ["DistributedOptimizer"]
