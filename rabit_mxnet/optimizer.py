"""DistributedOptimizer: any MXNet optimizer, on gradients averaged over the ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import rabit
from rabit import InvalidArgument, ProcessSet, global_process_set
from rabit.framework import (
    Exchange,
    Meeting,
    Strategy,
    check_process_set,
    follow_default_engine,
    refuse_in_elastic_jobs,
)
from rabit_mxnet.loaded import mx
from rabit_mxnet.method import Method, chosen_strategy, meet_if_due
from rabit_mxnet.ops import reduce_gradients


class DistributedOptimizer(mx.optimizer.Optimizer):  # type: ignore[misc]
    """Wraps an MXNet optimizer so that `update` works on the mean gradient of all ranks.

    optimizer: for Module.init_optimizer(kvstore=None, optimizer=…) or an Updater.  `update` leaves the
    mean in the gradients.
    gradient_predivide_factor: gradients are divided by it before the sum and multiplied after.
    num_groups: 0, or into how many groups a list of gradients is divided that travel together.
    strategy: a method of `rabit.strategies` for gradients, or a text such as "powersgd:rank=2", in place
    of the mean; `update` blocks then.  None: RABIT_STRATEGY, or the mean.
    """

    def __init__(
        self,
        optimizer: Any,
        gradient_predivide_factor: float = 1.0,
        num_groups: int = 0,
        process_set: ProcessSet = global_process_set,
        *,
        strategy: Strategy | Exchange | str | None = None,
    ) -> None:
        if not isinstance(optimizer, mx.optimizer.Optimizer):
            raise InvalidArgument(
                f"DistributedOptimizer wraps an mxnet.optimizer.Optimizer, not "
                f"{type(optimizer).__name__}. Make one with mxnet.optimizer.create(name)."
            )
        if isinstance(optimizer, DistributedOptimizer):
            raise InvalidArgument(
                f"the optimizer on rank {rabit.rank()} is wrapped by DistributedOptimizer already, and its gradients "
                "would be summed twice. Wrap it once"
            )
        check_process_set(process_set)
        # Not super().__init__(): every attribute is the wrapped optimizer's.
        self._optimizer = optimizer
        self._gradient_predivide_factor = gradient_predivide_factor
        self._num_groups = num_groups
        self._process_set = process_set
        has_other = gradient_predivide_factor != 1.0 or num_groups != 0
        chosen = chosen_strategy(strategy, optimizer, has_other)
        if chosen is not None and chosen.uses_step:
            raise InvalidArgument(
                f"{type(chosen).__name__} works on updated parameters, and an optimizer does not learn when "
                "all of them are. Use gluon and DistributedTrainer(strategy=...)."
            )
        self._method = None
        if chosen is not None and process_set.included():
            self._method = Method(chosen, process_set)
        refuse_in_elastic_jobs(
            "DistributedOptimizer",
            {"strategy": chosen is not None, "a process set": process_set is not global_process_set},
            "Use the mean of the gradients of all ranks",
        )
        self._meeting: Meeting | None = Meeting(rabit.default_engine(), process_set, chosen)
        self._names = next_prefix()
        follow_default_engine(self._start_over)

    def unwrap(self) -> Any:
        """Returns the wrapped optimizer."""
        return self._optimizer

    def __getattr__(self, name: str) -> Any:
        if name == "_optimizer":  # While a copy is being unpickled nothing is set.
            raise AttributeError(name)
        return getattr(self._optimizer, name)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_meeting": None}  # A copy has met.

    def create_state(self, index: Any, weight: Any) -> Any:
        """The wrapped optimizer's state of one weight."""
        return self._optimizer.create_state(index, weight)

    def create_state_multi_precision(self, index: Any, weight: Any) -> Any:
        """The wrapped optimizer's state of one weight, with a float32 copy where it has one."""
        return self._optimizer.create_state_multi_precision(index, weight)

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Averages `grad` over the ranks, then updates `weight`.  Does not block."""
        self._reduce(index, weight, grad)
        self._optimizer.update(index, weight, grad, state)

    def update_multi_precision(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Like `update`, for weights of lower precision than the state."""
        self._reduce(index, weight, grad)
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

    def _start_over(self) -> None:
        """The ranks of an elastic job have changed."""
        self._meeting = Meeting(rabit.default_engine(), self._process_set, None)
        self._names = next_prefix()

    def _reduce(self, index: Any, weight: Any, grad: Any) -> None:
        if not isinstance(index, (list, tuple)):
            index, weight, grad = [index], [weight], [grad]
        slots = []
        if self._method is not None:  # First: their shapes are compared.
            slots = [
                self._method.slot(str(i), w, self._priority(i), self._learning_rate)
                for i, w in zip(index, weight, strict=True)
            ]
        if self._process_set.included():
            meet_if_due(self._meeting, self._method)
        if self._method is not None:
            self._method.exchange(slots, grad)
            return
        if self._process_set.size() == 1 or not self._process_set.included():
            return
        sizes = group_sizes(len(index), self._num_groups)
        factor = self._gradient_predivide_factor
        first = 0
        for size in sizes:
            members = slice(first, first + size)
            names = [f"{self._names}{each}" for each in index[members]]
            priority = self._priority(index[first], first)
            factors = (1.0 / factor, factor)
            reduce_gradients(
                grad[members], names, priority, rabit.Average, factors, self._process_set
            )
            first += size

    def _priority(self, index: Any, place: int = 0) -> int:
        return -index if isinstance(index, int) else -place

    def _learning_rate(self) -> float:
        return float(self._optimizer.learning_rate)


def next_prefix() -> str:
    """What the names of the gradients of one more trainer or optimizer begin with.

    These are made in the same order on every rank, so two of them (a GAN) never use one name for two things.
    """
    return f"{rabit.default_engine().next_name('gradient')}."


def group_sizes(count: int, num_groups: int) -> Sequence[int]:
    """How many of `count` gradients each call carries: one without groups, else even shares."""
    if num_groups < 0:
        raise InvalidArgument(f"num_groups is {num_groups}. Give 0 for none, or a positive number.")
    if num_groups == 0:
        return [1] * count
    share, longer = divmod(count, num_groups)
    sizes = [share + (1 if group < longer else 0) for group in range(num_groups)]
    return [size for size in sizes if size]
