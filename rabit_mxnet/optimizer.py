"""DistributedOptimizer: any MXNet optimizer, on gradients summed over the ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rabit import Compression, InvalidArgument, ProcessSet, global_process_set
from rabit_mxnet.loaded import mx
from rabit_mxnet.ops import reduce_gradients


class DistributedOptimizer(mx.optimizer.Optimizer):  # type: ignore[misc]
    """Wraps an MXNet optimizer so that `update` works on the mean gradient of all ranks.

    optimizer: for Module.init_optimizer(kvstore=None, optimizer=…) or an Updater.  Its rescale_grad
    is divided by the number of ranks, which turns the sum into the mean.
    gradient_predivide_factor: gradients are divided by it before the sum and multiplied after.
    num_groups: 0, or into how many groups a list of gradients is divided that travel together.
    """

    def __init__(
        self,
        optimizer: Any,
        gradient_predivide_factor: float = 1.0,
        num_groups: int = 0,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        if not isinstance(optimizer, mx.optimizer.Optimizer):
            raise InvalidArgument(
                f"DistributedOptimizer wraps an mxnet.optimizer.Optimizer, not "
                f"{type(optimizer).__name__}. Make one with mxnet.optimizer.create(name)."
            )
        # Not super().__init__(): every attribute is the wrapped optimizer's.
        self._optimizer = optimizer
        self._gradient_predivide_factor = gradient_predivide_factor
        self._num_groups = num_groups
        self._process_set = process_set
        self._rescale = gradient_predivide_factor / process_set.size()
        optimizer.rescale_grad *= self._rescale

    def unwrap(self) -> Any:
        """Returns the wrapped optimizer with the rescale_grad that it came with."""
        self._optimizer.rescale_grad /= self._rescale
        return self._optimizer

    def __getattr__(self, name: str) -> Any:
        if name == "_optimizer":  # While a copy is being unpickled nothing is set.
            raise AttributeError(name)
        return getattr(self._optimizer, name)

    def create_state(self, index: Any, weight: Any) -> Any:
        """The wrapped optimizer's state of one weight."""
        return self._optimizer.create_state(index, weight)

    def create_state_multi_precision(self, index: Any, weight: Any) -> Any:
        """The wrapped optimizer's state of one weight, with a float32 copy where it has one."""
        return self._optimizer.create_state_multi_precision(index, weight)

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Sums `grad` over the ranks, then updates `weight`.  Does not block."""
        self._reduce(index, grad)
        self._optimizer.update(index, weight, grad, state)

    def update_multi_precision(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Like `update`, for weights of lower precision than the state."""
        self._reduce(index, grad)
        self._optimizer.update_multi_precision(index, weight, grad, state)

    def set_learning_rate(self, lr: float) -> None:
        """Sets the learning rate of the wrapped optimizer."""
        self._optimizer.set_learning_rate(lr)

    def set_lr_mult(self, args_lr_mult: Any) -> None:
        """Sets the learning rate multipliers of the wrapped optimizer."""
        self._optimizer.set_lr_mult(args_lr_mult)

    def set_wd_mult(self, args_wd_mult: Any) -> None:
        """Sets the weight decay multipliers of the wrapped optimizer."""
        self._optimizer.set_wd_mult(args_wd_mult)

    def _reduce(self, index: Any, grad: Any) -> None:
        if self._process_set.size() == 1 or not self._process_set.included():
            return
        if not isinstance(index, (list, tuple)):
            index, grad = [index], [grad]
        sizes = group_sizes(len(index), self._num_groups)
        prescale = 1.0 / self._gradient_predivide_factor
        first = 0
        for size in sizes:
            members = slice(first, first + size)
            names = [str(each) for each in index[members]]
            priority = -index[first] if isinstance(index[first], int) else -first
            reduce_gradients(
                grad[members], names, priority, prescale, self._process_set, Compression.none
            )
            first += size


def group_sizes(count: int, num_groups: int) -> Sequence[int]:
    """How many of `count` gradients each call carries: one without groups, else even shares."""
    if num_groups < 0:
        raise InvalidArgument(f"num_groups is {num_groups}. Give 0 for none, or a positive number.")
    if num_groups == 0:
        return [1] * count
    share, longer = divmod(count, num_groups)
    sizes = [share + (1 if group < longer else 0) for group in range(num_groups)]
    return [size for size in sizes if size]
