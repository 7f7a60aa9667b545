"""Keras 3 on all ranks, with Horovod's names: DistributedOptimizer and the callbacks of `model.fit`.

Gradients, weights and metrics travel as NumPy arrays, which share the memory of torch's tensors on a CPU.  The backends
are torch, and the others of Keras with `model.compile(..., run_eagerly=True)`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rabit.compression import Compression, CompressionCodec
from rabit.errors import InvalidArgument
from rabit.integrations.needed import needed
from rabit.ops.collectives import allreduce, broadcast, grouped_allreduce
from rabit.session import size
from rabit.types import ReduceOp

# Callbacks derive from a class of Keras's, which loads with the first of them.
__all__ = [
    "BroadcastGlobalVariablesCallback",  # noqa: F822
    "DistributedOptimizer",
    "LearningRateWarmupCallback",  # noqa: F822
    "MetricAverageCallback",  # noqa: F822
    "broadcast_variables",
]


def DistributedOptimizer(
    optimizer: Any,
    op: ReduceOp = ReduceOp.AVERAGE,
    compression: CompressionCodec = Compression.none,
) -> Any:
    """An optimizer like `optimizer`, of Keras, that applies what `op` makes of the gradients of all ranks.

    compression: one of `rabit.Compression`.  Each step is one operation; it blocks until every rank has taken it.
    Raises, in `fit`, Mismatch if the ranks have other models, PeerLost if a rank died.
    """
    keras = needed("keras", "rabit.keras.DistributedOptimizer", "keras")
    kind = type(optimizer)

    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        found = [index for index, gradient in enumerate(grads) if gradient is not None]
        arrays = [np.asarray(keras.ops.convert_to_numpy(grads[index])) for index in found]
        combined = list(grads)
        if size() > 1 and arrays:
            means = grouped_allreduce(
                arrays, op=op, name="keras.gradients", compression=compression
            )
            for index, mean in zip(found, means, strict=True):
                combined[index] = keras.ops.convert_to_tensor(mean, dtype=grads[index].dtype)
        return kind.apply(self, combined, trainable_variables)

    made: Any = type(kind.__name__, (kind,), {"apply": apply, "__module__": kind.__module__})
    return made.from_config(optimizer.get_config())


def broadcast_variables(variables: Any, root_rank: int = 0) -> None:
    """Gives Keras's `variables` the values that they have on rank `root_rank`.  Blocks until every rank has come."""
    keras = needed("keras", "rabit.keras.broadcast_variables", "keras")
    for index, variable in enumerate(variables):
        value = np.asarray(keras.ops.convert_to_numpy(variable))
        variable.assign(broadcast(value, root_rank, name=f"keras.variables.{index}"))


def _broadcasts(base: Any) -> Any:
    class BroadcastGlobalVariablesCallback(base):  # type: ignore[misc]
        """Before the first step, all ranks take weights and optimizer of rank `root_rank`."""

        def __init__(self, root_rank: int = 0) -> None:
            super().__init__()
            self.root_rank = root_rank
            self._is_done = False

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            if self._is_done:
                return
            # Not the seeds: ranks drop out other units.
            broadcast_variables(
                [*self.model.weights, *self.model.optimizer.variables], self.root_rank
            )
            self._is_done = True

    return BroadcastGlobalVariablesCallback


def _averages(base: Any) -> Any:
    class MetricAverageCallback(base):  # type: ignore[misc]
        """At the end of an epoch, its metrics become means over ranks.  Put it before callbacks that read them.

        All ranks have the same metrics: they all validate, or none.
        """

        def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
            if logs and size() > 1:
                names = sorted(logs)
                values = np.array([float(logs[name]) for name in names])
                means = allreduce(
                    values, op=ReduceOp.AVERAGE, name="keras.metrics " + " ".join(names)
                )
                logs.update(zip(names, means.tolist(), strict=True))

    return MetricAverageCallback


def _warms_up(base: Any) -> Any:
    class LearningRateWarmupCallback(base):  # type: ignore[misc]
        """The learning rate grows with every step from initial_lr / size() to `initial_lr`, in `warmup_epochs`.

        initial_lr: that of all ranks together, such as 0.01 * size().
        Source: Accurate, Large Minibatch SGD (Goyal et al., 2017).
        """

        def __init__(self, initial_lr: float, warmup_epochs: int = 5) -> None:
            super().__init__()
            if warmup_epochs < 1:
                raise InvalidArgument(
                    f"LearningRateWarmupCallback: warmup_epochs is {warmup_epochs}. Give 1 or more."
                )
            self.initial_lr, self.warmup_epochs = initial_lr, warmup_epochs
            self._epoch = 0

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self._epoch = epoch

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            done = self._epoch + (batch + 1) / (self.params.get("steps") or 1)
            if self._epoch < self.warmup_epochs:
                share = min(1.0, done / self.warmup_epochs)
                self.model.optimizer.learning_rate = (
                    self.initial_lr * (1 + share * (size() - 1)) / size()
                )

    return LearningRateWarmupCallback


_MAKERS = {
    "BroadcastGlobalVariablesCallback": _broadcasts,
    "LearningRateWarmupCallback": _warms_up,
    "MetricAverageCallback": _averages,
}


def __getattr__(name: str) -> Any:
    if name not in _MAKERS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    keras = needed("keras", f"rabit.keras.{name}", "keras")
    globals()[name] = _MAKERS[name](keras.callbacks.Callback)
    return globals()[name]
