"""A gradient method on MXNet parameters: rabit.strategies behind the trainer and the optimizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import rabit
from rabit import InvalidArgument, ProcessSet
from rabit.framework import Array, Meeting, Pipeline, Strategy, as_strategy, has_momentum
from rabit_mxnet.arrays import array_like
from rabit_mxnet.loaded import mx


class ArraySlot:
    """One parameter as methods see it: NumPy copies of MXNet's arrays; float16 as float32."""

    is_result = False

    def __init__(
        self,
        name: str,
        weight: Any,
        priority: int,
        rate: Callable[[], float],
        frozen: Callable[[], bool],
    ) -> None:
        """weight: an NDArray that stays the parameter's.  rate, frozen: of the moment."""
        self.name = name
        self.priority = priority
        self.grad: Any = None
        self.state: Any = None
        self._weight = weight
        self._rate = rate
        self._frozen = frozen
        self._gradient: Any = None

    @property
    def value(self) -> Array:
        return self._array(self._weight)

    @value.setter
    def value(self, array: Array) -> None:
        self._weight[:] = array_like(array.reshape(self._weight.shape), self._weight)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self._weight.shape) or (1,)

    @property
    def dtype(self) -> np.dtype[Any]:
        wide = np.dtype(self._weight.dtype) == np.float64
        return np.dtype(np.float64 if wide else np.float32)

    @property
    def lr(self) -> float:
        return self._rate()

    @property
    def is_frozen(self) -> bool:
        return self._frozen()

    def take(self, gradient: Any) -> None:
        """What travels is `gradient`; `write_back` goes there."""
        self._gradient = gradient
        self.grad = self._array(gradient)

    def write_back(self) -> None:
        """Puts what the optimizer is to use into the gradient."""
        self._gradient[:] = array_like(self.grad.reshape(self._gradient.shape), self._gradient)

    def forget(self) -> None:
        """The step has ended: until then a method may read `grad`."""
        self._gradient = self.grad = None

    def _array(self, array: Any) -> Array:
        return np.atleast_1d(array.asnumpy().astype(self.dtype, copy=False))


class Method:
    """Stands between gradients and a Strategy.  Blocks, in the thread that trains."""

    def __init__(self, strategy: Strategy, process_set: ProcessSet) -> None:
        self.strategy = strategy
        engine = rabit.default_engine()
        name = engine.next_name("method")
        self._pipeline = Pipeline(strategy, [], engine=engine, process_set=process_set, name=name)
        self._slot_of: dict[str, ArraySlot] = {}
        self._exchanged: set[str] = set()
        engine.before_close(self._pipeline.close, keeps=self._pipeline.ends_together)

    def meet_if_due(self, meeting: Meeting) -> None:
        """With the other ranks; continues as after the steps that those have taken who took most."""
        self._pipeline.meet_if_due(meeting)

    def slot(
        self,
        name: str,
        weight: Any,
        priority: int,
        rate: Callable[[], float],
        frozen: Callable[[], bool] = lambda: False,
    ) -> ArraySlot:
        """That of a parameter, whose names and order are equal on all ranks."""
        found = self._slot_of.get(name)
        if found is None:
            found = self._slot_of[name] = ArraySlot(name, weight, priority, rate, frozen)
            self._pipeline.add([found])
        return found

    def exchange(self, slots: Sequence[ArraySlot], gradients: Sequence[Any]) -> None:
        """Puts into the gradients what the optimizer is to use.

        A parameter that comes again begins the next step.
        """
        if self._exchanged.intersection(slot.name for slot in slots):
            self.after_step()
        self._exchanged.update(slot.name for slot in slots)
        # What comes last in the model is ready first elsewhere, and all of them leave together here.
        for slot, gradient in zip(slots, gradients, strict=True):
            slot.take(gradient)
            self._pipeline.ready(slot)
        self._pipeline.flush()
        self._pipeline.wait(slots)
        for slot in slots:
            slot.write_back()

    def before_step(self) -> None:
        """All gradients have been exchanged, and the optimizer is about to step."""
        self._pipeline.before_step()

    def after_step(self) -> None:
        """The optimizer has stepped."""
        self._exchanged.clear()
        self._pipeline.after_step()
        for slot in self._slot_of.values():
            slot.forget()

    def state_dict(self) -> dict[str, Any]:
        """The state of the method: "replicated", equal on all ranks, and "local", of this one."""
        return self._pipeline.state_dict()

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Continues from what `state_dict` gave."""
        self._pipeline.load_state_dict(saved)


def meet_if_due(meeting: Meeting | None, method: Method | None) -> None:
    """Before gradients leave; see Meeting."""
    if meeting is None:
        return
    if method is not None:
        method.meet_if_due(meeting)
    else:
        meeting.meet()


def chosen_strategy(given: Any, optimizer: Any, has_other: bool) -> Strategy | None:
    """The strategy of an argument, None: of the configuration; refuses what cannot work with the rest.

    has_other: a compression or groups or a division of gradients are asked for as well.
    """
    configured = rabit.default_engine().config.strategy
    if given is None and not configured:
        return None
    source = "strategy" if given is not None else f"RABIT_STRATEGY, {configured!r},"
    if has_other:
        raise InvalidArgument(
            f"{source} says how gradients travel, and so do compression, gradient_predivide_factor and "
            "num_groups. Leave them out."
        )
    strategy = as_strategy(configured if given is None else given)
    is_plain = isinstance(optimizer, mx.optimizer.SGD) and not optimizer.momentum
    if has_momentum(strategy) and not is_plain:
        raise InvalidArgument(
            f"{source} keeps momentum by itself ({type(strategy).__name__}), and "
            f"{type(optimizer).__name__} would add its own. Use SGD with momentum=0."
        )
    lost = [name for name in ("wd", "clip_gradient") if getattr(optimizer, name, None)]
    if strategy.replaces_step and lost:
        raise InvalidArgument(
            f"{source} takes the step by itself ({type(strategy).__name__}), and {' and '.join(lost)} of "
            f"{type(optimizer).__name__} would be lost. Leave it out, or put it into the loss."
        )
    return strategy
