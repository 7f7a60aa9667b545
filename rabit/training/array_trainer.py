"""ArrayTrainer: trains NumPy arrays by a strategy, as a framework package does with its tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from rabit.engine.current import current_engine
from rabit.engine.process_set import ProcessSet, global_process_set
from rabit.errors import IntegrityError

from .integrity import FiniteGuard, finite_mode, first_not_finite
from .meeting import Meeting
from .pipeline import Pipeline
from .refusal import refuse_in_elastic_jobs
from .strategy import Array, Strategy

if TYPE_CHECKING:
    from rabit.engine.engine import Engine

__all__ = ["ArraySlot", "ArrayTrainer"]


class ArraySlot:
    """A parameter that is a NumPy array."""

    is_result = False
    is_frozen = False

    def __init__(self, name: str, value: Array, priority: int) -> None:
        self.name = name
        self.priority = priority
        self.grad: Any = None
        self.state: Any = None
        self.lr = 0.0
        self._value = np.atleast_1d(value)  # A view.

    @property
    def value(self) -> Array:
        return self._value

    @value.setter
    def value(self, array: Array) -> None:
        self._value[...] = array

    @property
    def shape(self) -> tuple[int, ...]:
        shape: tuple[int, ...] = self._value.shape
        return shape

    def take(self, gradient: Array) -> None:
        """What travels is `gradient`."""
        self.grad = np.atleast_1d(gradient)

    @property
    def dtype(self) -> np.dtype[Any]:
        dtype: np.dtype[Any] = self._value.dtype
        return dtype


def gradient_descent(slot: ArraySlot) -> None:
    """The plainest update."""
    slot.value = slot.value - slot.lr * slot.grad


class ArrayTrainer:
    """A training loop's optimizer: `step` with the gradients of this rank.

    parameters: by name; changed in place.
    update: applies `slot.grad` with `slot.lr` to `slot.value`.
    name: equal on all ranks, and no other trainer's in use; random numbers of the engine's codecs
    depend on it, so that one which continues from a saved state is named like the one that saved it.
    None: by number.
    check_finite: looks for NaN and Inf in every gradient ("sample": in a sixteenth of them, in turn) before
    it is combined; `step` then raises IntegrityError on all ranks, which names rank and tensor, and the
    step has not happened.  None: as RABIT_CHECK_FINITE says.
    For trying methods out, and for frameworks without a package.
    """

    def __init__(
        self,
        parameters: Mapping[str, Array],
        strategy: Strategy,
        *,
        lr: float,
        update: Callable[[ArraySlot], None] = gradient_descent,
        process_set: ProcessSet = global_process_set,
        engine: Engine | None = None,
        name: str | None = None,
        check_finite: bool | str | None = None,
    ) -> None:
        self.lr = lr
        self._update = update
        found = engine or current_engine()
        if engine is None:
            refuse_in_elastic_jobs("ArrayTrainer", {"a strategy": True}, "Use rabit.allreduce")
        if name is None:
            name = found.next_name("array")
        count = len(parameters)
        self.slots = [
            ArraySlot(key, value, count - index)
            for index, (key, value) in enumerate(parameters.items())
        ]
        self._slot_of = dict(zip(parameters, self.slots, strict=True))
        self.set_lr(lr)
        self.pipeline = Pipeline(
            strategy, self.slots, engine=found, process_set=process_set, name=name
        )
        self._meeting = Meeting(found, process_set, strategy)
        mode = finite_mode(check_finite, found.config.check_finite)
        self._guard = None if mode == "off" else FiniteGuard(mode, name, found, process_set)

    def set_lr(self, lr: float) -> None:
        """Sets the learning rate of the steps to come."""
        for slot in self.slots:
            slot.lr = lr

    def start(self, gradients: Mapping[str, Array]) -> None:
        """Starts the exchange of some gradients; those of the last layer come first."""
        self.pipeline.begin_meeting(self._meeting)
        for key, gradient in gradients.items():
            slot = self._slot_of[key]
            if self._guard is not None:
                self._look(slot, gradient)
            slot.take(gradient)
            self.pipeline.ready(slot)
        self.pipeline.flush()

    def step(self, gradients: Mapping[str, Array] | None = None) -> None:
        """Exchanges the gradients, None: those that were started, and updates the parameters.

        Raises Mismatch if the ranks have other strategies or shapes, as soon as this one knows.
        """
        self.start(gradients or {})
        if self._meeting.is_over:  # Ranks may step several trainers in another order, and need not wait here.
            self.pipeline.end_meeting(self._meeting)
        if self._guard is not None:
            self._check(self._guard)
        try:
            self.pipeline.before_step()
            for slot in self.slots:
                self._update(slot)
            self.pipeline.after_step()
        except ValueError:  # Arrays that do not fit together: the meeting knows which, and of which ranks.
            if self._meeting.is_open:
                self.pipeline.end_meeting(self._meeting)
            raise

    def skip_step(self) -> None:
        """Takes back what the gradients that were started have done: the step does not happen."""
        self.pipeline.undo()
        if self._guard is not None:
            self._guard.forget()

    def _look(self, slot: ArraySlot, gradient: Array) -> None:
        assert self._guard is not None
        if self._guard.wants(self.slots.index(slot)):
            found = first_not_finite(gradient)
            if found is not None:
                self._guard.note(slot.name, *found)

    def _check(self, guard: FiniteGuard) -> None:
        try:
            guard.check()
        except IntegrityError:  # On all ranks.
            self.pipeline.undo()
            raise
