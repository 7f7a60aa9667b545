"""Checkpoints: sharded over the ranks, written in the background, whole or not there at all.

    with Checkpoint("checkpoints", keep=3) as checkpoint:
        found = checkpoint.restore()
        step = 0 if found is None else found.step
        ...
            if checkpoint.is_due(step):
                checkpoint.save({"weights": weights}, step=step, local={"random": random_state})

Tensors of other frameworks: rabit_torch.Checkpoint.
"""

from rabit.checkpoint.checkpoint import Checkpoint, Restored
from rabit.checkpoint.errors import CheckpointDamaged, CheckpointFailed
from rabit.checkpoint.leaves import Adapter, Bytes, Leaf, NumpyAdapter, Part, Stored
from rabit.checkpoint.peers import Alone
from rabit.types import RESUMABLE

__all__ = [
    "Adapter",
    "Alone",
    "Bytes",
    "Checkpoint",
    "CheckpointDamaged",
    "CheckpointFailed",
    "Leaf",
    "NumpyAdapter",
    "Part",
    "RESUMABLE",
    "Restored",
    "Stored",
]
