"""What DistributedTrainer(shard=...) divides among the ranks."""

from rabit_mxnet.sharding.trainer import DividedTrainer, chosen_stage

__all__ = ["DividedTrainer", "chosen_stage"]
