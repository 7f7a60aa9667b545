"""DistributedOptimizer: gradients are exchanged while backward runs."""
