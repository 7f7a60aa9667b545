"""A gradient method on torch parameters: rabit.strategies behind DistributedOptimizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

import rabit
from rabit import InvalidArgument, ProcessSet
from rabit.framework import Operands, Pipeline, Task
from rabit.strategies import Array, Strategy, as_strategy
from rabit_torch.parameter_state import ParameterState

__all__ = ["Method", "TorchSlot", "check_strategy_overlap", "chosen_strategy"]

_PUTS_OFF = ("next-forward", "reduce-scatter", "auto")


class TorchSlot:
    """One parameter as methods see it: NumPy arrays over torch's memory; 16-bit floats as float32."""

    def __init__(self, method: Method, state: ParameterState, name: str) -> None:
        self.name = name
        self.grad: Any = None
        self.state: Any = None
        self._method = method
        self._parameter_state = state
        self._parameter = state.parameter
        self._gradient: torch.Tensor | None = None
        self._known: Any = None  # what the gradient's memory holds

    @property
    def value(self) -> Array:
        return _array(self._parameter)

    @value.setter
    def value(self, array: Array) -> None:
        _copy(self._parameter, array)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self._parameter.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        wide = self._parameter.dtype == torch.float64
        return np.dtype(np.float64 if wide else np.float32)

    @property
    def priority(self) -> int:
        return self._method.priority(self._parameter_state)

    @property
    def lr(self) -> float:
        return self._method.learning_rate(self._parameter)

    def take(self, gradient: torch.Tensor) -> None:
        """What travels is `gradient`; `write_back` goes there."""
        self._gradient = gradient
        self.grad = self._known = _array(gradient)

    def write_back(self) -> None:
        """Puts what the optimizer is to use into the gradient."""
        if self._gradient is not None and self.grad is not self._known:
            _copy(self._gradient, self.grad)
            self._known = self.grad

    def forget(self) -> None:
        """The step has ended."""
        self._gradient = self.grad = self._known = None


class Method:
    """Stands between GradientReducer and a Strategy.  Called by whoever calls the reducer."""

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
        self._group_of: dict[int, dict[str, Any]] = {}
        self._slot_in_engine: dict[int, TorchSlot] = {}
        self.strategy = strategy
        engine = rabit.default_engine()
        slots = self._slots(states)
        self.pipeline = Pipeline(
            strategy, slots, engine=engine, process_set=process_set, name=prefix
        )
        self._choose(states, slots)
        engine.before_close(self.finish)

    def add(self, states: Sequence[ParameterState]) -> None:
        """Takes further parameters."""
        slots = self._slots(states)
        self.pipeline.add(slots)
        self._choose(states, slots)

    def _slots(self, states: Sequence[ParameterState]) -> list[TorchSlot]:
        for group in self._optimizer.param_groups:
            self._group_of.update({id(parameter): group for parameter in group["params"]})
        for state in states:
            if not state.parameter.is_floating_point():
                raise InvalidArgument(
                    f"parameter '{state.name}' on rank {rabit.rank()} has elements of type "
                    f"{state.parameter.dtype}; a strategy works on floating-point parameters"
                )
        return [TorchSlot(self, each, each.name[len(self._prefix) + 1 :]) for each in states]

    def _choose(self, states: Sequence[ParameterState], slots: Sequence[TorchSlot]) -> None:
        """What the engine does in one round by itself goes the way of plain gradients."""
        for state, slot in zip(states, slots, strict=True):
            wire = self.pipeline.wire(slot)
            if wire is not None and wire.has_operands and state.parameter.dtype != torch.float32:
                wire = None  # The engine gets the slot's array of float32, by a coroutine.
            state.slot = slot if wire is None else None
            state.codec = None if wire is None else wire.codec
            state.has_operands = wire is not None and wire.has_operands
            if state.has_operands:
                self._slot_in_engine[state.index] = slot

    def priority(self, state: ParameterState) -> int:
        """What the next forward pass needs first runs first."""
        return len(self._states) - state.place if state.priority is None else state.priority

    def learning_rate(self, parameter: torch.Tensor) -> float:
        """Of the optimizer at this moment; 1 where it has none."""
        return float(self._group_of[id(parameter)].get("lr", 1.0))

    def start(self, state: ParameterState) -> Task:
        """Starts the exchange of a gradient; it leaves with `progress`."""
        assert state.grad is not None
        state.slot.take(state.grad)
        return self.pipeline.ready(state.slot)

    def operands(self, state: ParameterState) -> Operands:
        """What goes to the engine with a gradient that is its own and `has_operands`."""
        return self.pipeline.operands(self._slot_in_engine[state.index])

    def progress(self) -> None:
        """Goes on with what can go on, and submits what is to leave."""
        self.pipeline.flush()

    def before_step(self) -> None:
        """The gradients are in place, and the optimizer is about to step."""
        with torch.no_grad():
            self.pipeline.before_step()
        for state in self._states:
            if state.slot is not None:
                state.slot.write_back()

    def after_step(self) -> None:
        """The optimizer has stepped."""
        with torch.no_grad():
            self.pipeline.after_step()
        for state in self._states:
            if state.slot is not None and state.handle is None:  # Else its update waits.
                state.slot.forget()

    def undo(self) -> None:
        """The gradients of this step are dropped."""
        self.pipeline.undo()

    def finish(self) -> None:
        """Brings in what is under way; collective."""
        with torch.no_grad():
            self.pipeline.finish()

    def state_dict(self) -> dict[str, Any]:
        """The state of the method, with tensors in place of arrays."""
        saved = self.pipeline.state_dict()
        for scope in ("replicated", "local"):
            saved[scope] = {path: _saved(value) for path, value in saved[scope].items()}
        return saved

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Goes on from what `state_dict` gave."""
        loaded: dict[str, Any] = {"step": saved["step"]}
        for scope in ("replicated", "local"):
            loaded[scope] = {path: _loaded(value) for path, value in saved[scope].items()}
        self.pipeline.load_state_dict(loaded)


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
    _check_optimizer(strategy, optimizer)
    return strategy


def check_strategy_overlap(strategy: Strategy | None, overlap: Any) -> None:
    """Raises InvalidArgument where updates would be put off past what the strategy does at the step."""
    if strategy is not None and strategy.uses_step and overlap in _PUTS_OFF:
        raise InvalidArgument(
            f"overlap={overlap!r} puts updates off, and {type(strategy).__name__} works on updated "
            "parameters in step(). Use overlap='backward'"
        )


def _check_optimizer(strategy: Strategy, optimizer: torch.optim.Optimizer) -> None:
    """Raises InvalidArgument where the strategy keeps the momentum that the optimizer keeps too."""
    is_plain = isinstance(optimizer, torch.optim.SGD) and not any(
        group["momentum"] for group in optimizer.param_groups
    )
    if strategy.has_momentum and not is_plain:
        raise InvalidArgument(
            f"strategy {type(strategy).__name__} keeps momentum by itself, and {type(optimizer).__name__} would add "
            "its own. Use torch.optim.SGD with momentum=0"
        )


def _array(tensor: torch.Tensor) -> Array:
    """The elements in row-major order; the tensor's own memory where they lie so."""
    dense = tensor.detach()
    if dense.dtype not in (torch.float32, torch.float64):
        dense = dense.float()
    array: Array = dense.contiguous().numpy()
    return array


def _copy(target: torch.Tensor, array: Array) -> None:
    with torch.no_grad():
        target.detach().copy_(torch.from_numpy(np.ascontiguousarray(array).reshape(target.shape)))


def _saved(value: Any) -> Any:
    return torch.from_numpy(np.array(value)) if isinstance(value, np.ndarray) else value


def _loaded(value: Any) -> Any:
    return value.numpy() if isinstance(value, torch.Tensor) else value
