"""A gradient method on torch parameters: rabit.strategies behind DistributedOptimizer."""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch

import rabit
from rabit import InvalidArgument, ProcessSet
from rabit.framework import (
    Change,
    Meeting,
    Pipeline,
    Standing,
    Strategy,
    as_strategy,
    has_momentum,
)
from rabit_torch.compression import Compression
from rabit_torch.learning_rates import LearningRates
from rabit_torch.optimizer.route_queue import RouteQueue
from rabit_torch.optimizer.routes import Coded, Plain
from rabit_torch.parameter_state import ParameterState, Route
from rabit_torch.torch_slot import TorchSlot, with_arrays, with_tensors

__all__ = ["Method", "check_strategy_overlap", "chosen_strategy", "own_copy"]

_PUTS_OFF = ("next-forward", "reduce-scatter", "auto")


class Method:
    """Stands between GradientReducer and a Strategy.  Called in the thread that calls the reducer."""

    def __init__(
        self,
        strategy: Strategy,
        states: list[ParameterState],
        prefix: str,
        *,
        optimizer: torch.optim.Optimizer,
        process_set: ProcessSet,
    ) -> None:
        """states: of all parameters; the list grows with the optimizer."""
        self._states = states
        self._prefix = prefix
        self._optimizer = optimizer
        self._learning_rates = LearningRates(optimizer)
        self._slots: dict[int, TorchSlot] = {}  # by index of the parameter
        self.strategy = strategy
        engine = rabit.default_engine()
        slots = self._make_slots(states)
        self.pipeline = Pipeline(
            strategy, slots, engine=engine, process_set=process_set, name=prefix
        )
        engine.before_close(self.close, keeps=self.pipeline.ends_together)

    @property
    def step(self) -> int:
        """How many steps have ended."""
        return self.pipeline.step

    def end_meeting(self, meeting: Meeting) -> Standing:
        """See Pipeline.end_meeting."""
        with torch.no_grad():
            return self.pipeline.end_meeting(meeting)

    def add(self, states: Sequence[ParameterState]) -> None:
        """Takes further parameters."""
        self.pipeline.add(self._make_slots(states))

    def check_optimizer(self) -> None:
        """Raises InvalidArgument if a group has come that this strategy does not work with."""
        _check_optimizer(self.strategy, self._optimizer)

    def _make_slots(self, states: Sequence[ParameterState]) -> list[TorchSlot]:
        self._learning_rates.learn()
        for state in states:
            if not state.parameter.is_floating_point():
                raise InvalidArgument(
                    f"parameter '{state.name}' on rank {rabit.rank()} has elements of type "
                    f"{state.parameter.dtype}; a strategy works on floating-point parameters"
                )
        self._slots.update({state.index: self._slot(state) for state in states})
        return [self._slots[state.index] for state in states]

    def _slot(self, state: ParameterState) -> TorchSlot:
        return TorchSlot(
            state.name[len(self._prefix) + 1 :],
            state.parameter,
            functools.partial(self._priority, state),
            functools.partial(self._learning_rates.of, state.parameter),
        )

    def route(self, state: ParameterState, queue: RouteQueue) -> Route:
        """What the engine does in one round by itself goes the way of plain gradients."""
        slot = self._slots[state.index]
        wire = self.pipeline.wire(slot)
        if wire is None or (wire.has_operands and state.parameter.dtype != torch.float32):
            return ByMethod(
                state, self, slot
            )  # The engine gets the slot's array of float32, by a coroutine.
        if wire.has_operands:
            return Coded(state, wire.codec, queue, functools.partial(self.pipeline.operands, slot))
        return Plain(state, wire.codec, queue)

    def _priority(self, state: ParameterState) -> int:
        """What the next forward pass needs first runs first."""
        return len(self._states) - state.place if state.priority is None else state.priority

    def progress(self) -> None:
        """Continues with what can continue, and submits what is to leave."""
        self.pipeline.flush()

    def before_step(self) -> None:
        """The gradients are in place, and the optimizer is about to step."""
        with torch.no_grad():
            self.pipeline.before_step()
        for slot in self._slots.values():
            slot.write_back()

    def after_step(self) -> None:
        """The optimizer has stepped."""
        with torch.no_grad():
            self.pipeline.after_step()
        for state in self._states:
            if state.route.handle is None:  # Else its update waits.
                self._slots[state.index].forget()

    def undo(self) -> None:
        """The gradients of this step are dropped."""
        self.pipeline.undo()

    def close(self) -> None:
        """Brings in what is under way before the engine closes; collective."""
        with torch.no_grad():
            self.pipeline.close()

    def state_dict(self) -> dict[str, Any]:
        """The state of the method, with tensors in place of arrays."""
        return with_tensors(self.pipeline.state_dict())

    def load_state_dict(self, saved: Mapping[str, Any], change: Change | None = None) -> None:
        """Continues from what `state_dict` gave; change: how the ranks differ from those that saved it."""
        self.pipeline.load_state_dict(with_arrays(saved), change)


class ByMethod(Route):
    """A coroutine of the strategy exchanges the gradient."""

    __slots__ = ("_method", "_slot")

    takes_sparse = False

    def __init__(self, state: ParameterState, method: Method, slot: TorchSlot) -> None:
        super().__init__(state, Compression.none)
        self._method = method
        self._slot = slot

    def start(self, grad: torch.Tensor) -> None:
        self._slot.take(grad)
        self.handle = self._method.pipeline.ready(self._slot)

    def finish(self) -> None:
        self.handle.wait()
        self.handle = None
        if self.state.grad is not None:
            self._slot.write_back()
            if self.state.sparse_dim is not None:
                self.state.give(self.state.grad)


def chosen_strategy(
    method: Any, configured: str, optimizer: torch.optim.Optimizer, others: Mapping[str, Any]
) -> Strategy | None:
    """The strategy of an argument, None: of the configuration; refuses what cannot work with the rest.

    others: arguments that say otherwise how gradients travel, by name, where they were given.
    """
    if method is not None or not configured:
        return _checked_strategy(method, optimizer, others)
    try:
        return _checked_strategy(configured, optimizer, others)
    except InvalidArgument as error:
        raise InvalidArgument(
            f"RABIT_STRATEGY or --strategy is {configured!r}, and this optimizer on rank {rabit.rank()} "
            f"has no strategy of its own: {error}"
        ) from error


def _checked_strategy(
    method: Any, optimizer: torch.optim.Optimizer, others: Mapping[str, Any]
) -> Strategy | None:
    if method is None:
        return None
    given = [name for name, value in others.items() if value]
    if given:
        raise InvalidArgument(
            f"strategy says how gradients travel, and so does {', '.join(given)}; leave one of them out"
        )
    strategy = as_strategy(method)
    _check_optimizer(strategy, optimizer, repr(method) if isinstance(method, str) else "")
    return strategy


def own_copy(strategy: Strategy | None) -> Strategy | None:
    """What an optimizer uses: in an elastic job a copy, so that `strategy` stays as it was given."""
    return copy.deepcopy(strategy) if rabit.default_engine().config.min_np else strategy


def check_strategy_overlap(strategy: Strategy | None, overlap: Any) -> None:
    """Raises InvalidArgument where updates would be put off past what the strategy does at the step."""
    if strategy is not None and strategy.uses_step and overlap in _PUTS_OFF:
        raise InvalidArgument(
            f"overlap={overlap!r} puts updates off, and {type(strategy).__name__} works on updated "
            "parameters in step(). Use overlap='backward'"
        )


def _check_optimizer(
    strategy: Strategy, optimizer: torch.optim.Optimizer, text: str = ""
) -> None:
    """Raises InvalidArgument where both keep momentum, or the optimizer does what the strategy would undo.

    text: the user's own words for the strategy; "": there are none.
    """
    called = text or type(strategy).__name__
    is_plain = isinstance(optimizer, torch.optim.SGD) and not any(
        group["momentum"] for group in optimizer.param_groups
    )
    if has_momentum(strategy) and not is_plain:
        raise InvalidArgument(
            f"strategy {called} keeps momentum by itself, and {type(optimizer).__name__} would add "
            "its own. Use torch.optim.SGD with momentum=0, and set momentum in the strategy"
        )
    lost = [
        name
        for name in ("weight_decay", "maximize")
        if any(group.get(name) for group in optimizer.param_groups)
    ]
    if strategy.replaces_step and lost:
        raise InvalidArgument(
            f"strategy {called} takes the step by itself, and {' and '.join(lost)} of "
            f"{type(optimizer).__name__} would be lost. Leave it out, or put it into the loss"
        )
