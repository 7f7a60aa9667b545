"""DdpMethod: a gradient method inside torch's DistributedDataParallel."""

# No postponed annotations here: DDP compares those of a hook with its own classes.
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Optional

import torch
from torch._C._distributed_c10d import GradBucket

import rabit
from rabit import InvalidArgument, ProcessSet, global_process_set
from rabit.framework import Exchange, Meeting, Pipeline, Strategy, as_strategy
from rabit_torch.distributed.futures import completion_of, raise_after_backward
from rabit_torch.learning_rates import LearningRates
from rabit_torch.torch_slot import TorchSlot, with_arrays, with_tensors

__all__ = ["DdpMethod"]


class DdpMethod:
    """The state of `ddp_hook` that exchanges gradients by a method of `rabit.strategies`.

    method: an Exchange, a Strategy that works on gradients alone, or a text.
    named_parameters: `model.named_parameters()`; names appear in errors and saved states.
    optimizer: the one that steps, whose learning rate error feedback follows.  None: residuals stay in
    the unit of gradients, and what they hold is not conserved when the learning rate changes.
    process_set: the ranks of DDP's own group.
    One for each model.  State is kept by parameter, so DDP may form other buckets.  Every backward pass
    that DDP exchanges counts as a step, whether the optimizer steps afterwards or not.
    """

    def __init__(
        self,
        method: Strategy | Exchange | str,
        named_parameters: Iterable[tuple[str, torch.Tensor]],
        optimizer: Optional[torch.optim.Optimizer] = None,  # noqa: UP045
        process_set: ProcessSet = global_process_set,
    ) -> None:
        strategy = as_strategy(method)
        if strategy.uses_step:
            raise InvalidArgument(
                f"{type(strategy).__name__} works on parameters in step(), and a communication hook "
                "does not run there. Use rabit_torch.DistributedOptimizer(strategy=...) without DDP"
            )
        engine = rabit.default_engine()
        name = engine.next_name("ddp_method")
        # Of the parameter, which the slot keeps alive.
        self._slot_of = _slots(named_parameters, optimizer)
        slots = list(self._slot_of.values())
        self._pipeline = Pipeline(
            strategy, slots, engine=engine, process_set=process_set, name=name
        )
        self._meeting = Meeting(engine, process_set, strategy)
        self._completion = completion_of(engine)
        self._is_complete = False
        engine.before_close(self._pipeline.close, keeps=self._pipeline.ends_together)

    def start(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Starts the exchange of the gradients of a bucket; the future gets the bucket's memory."""
        if self._is_complete:  # This is the next backward pass.
            self._pipeline.after_step()
            self._is_complete = False
        self._pipeline.meet_if_due(self._meeting)
        slots = self._slots(bucket.parameters())
        tasks: list[Any] = []
        for slot, gradient in zip(slots, bucket.gradients(), strict=True):
            slot.take(gradient)
            tasks.append(self._pipeline.ready(slot))
        self._pipeline.flush()
        if bucket.is_last():
            self._is_complete = True
            self._pipeline.gradients_complete()
        buffer: torch.Tensor = bucket.buffer()

        def finish() -> torch.Tensor:
            self._pipeline.wait(slots)
            for slot in slots:
                slot.write_back()
                slot.forget()
            return buffer

        # Whoever looks continues with the rounds: the thread of the futures, or this one at the end.
        future: torch.futures.Future[torch.Tensor] = self._completion.future(tasks, finish, buffer)
        raise_after_backward(lambda: self._pipeline.wait(slots))
        return future

    def state_dict(self) -> dict[str, Any]:
        """The state of the method, between steps, on all ranks alike; "local" is each rank's own."""
        return with_tensors(self._pipeline.state_dict())

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Continues from what `state_dict` gave."""
        self._pipeline.load_state_dict(with_arrays(saved))

    def _slots(self, parameters: Sequence[torch.Tensor]) -> list[TorchSlot]:
        missing = [tuple(parameter.shape) for parameter in parameters if id(parameter) not in self._slot_of]
        if missing:
            raise InvalidArgument(
                f"DDP on rank {rabit.rank()} exchanges parameters of shapes {missing[:5]} that this DdpMethod "
                "was not given. Pass named_parameters of the model that DDP wraps, one object each"
            )
        return [self._slot_of[id(parameter)] for parameter in parameters]


def _slots(
    named_parameters: Iterable[tuple[str, torch.Tensor]],
    optimizer: Optional[torch.optim.Optimizer],  # noqa: UP045
) -> dict[int, TorchSlot]:
    rates = LearningRates(optimizer)
    trained = [(name, each) for name, each in named_parameters if each.requires_grad]
    return {
        id(each): TorchSlot(name, each, _urgency(len(trained) - place), functools.partial(rates.of, each))
        for place, (name, each) in enumerate(trained)
    }


def _urgency(number: int) -> Callable[[], int]:
    """What comes first in the model is needed first."""
    return lambda: number
