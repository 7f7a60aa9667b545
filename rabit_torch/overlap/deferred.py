"""Crossing: lets step() return before the gradients are there, exactly.

A step commits the updates with the hyper-parameters of that moment; each happens in the trainer's own
thread when its parameter is read, at the latest.  Source of the idea: Peng et al., "A Generic
Communication Scheduler for Distributed DNN Training Acceleration", 2019.
"""

from __future__ import annotations

import functools
import threading
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import torch

import rabit
from rabit import InvalidArgument
from rabit_torch.overlap.clip import GradientClip, clip_values
from rabit_torch.overlap.forward_pass import is_forward_pass
from rabit_torch.overlap.order_of_use import OrderOfUse
from rabit_torch.overlap.partial_step import PartialStep
from rabit_torch.overlap.watched import can_guard, guard, unguard
from rabit_torch.parameter_state import DeferredUpdate, ParameterState, Phase

__all__ = ["Crossing"]

# Updates that are ready anyway are taken along with one that is needed, up to so many.
_TAKE_ALONG = 64
_tensor: Any = torch.Tensor
# Reads that no forward pass begins with: saving, loading and broadcasting parameters.
_NO_USE = frozenset(
    [torch.Tensor.detach, _tensor.data.__get__, torch.Tensor.copy_, torch.Tensor.clone]
)
_READ_WARNING = (
    "gradients are read between backward() and step(), as clipping and GradScaler do, so this step "
    "waits for them and overlap={overlap!r} hides nothing. Results are not affected. For clipping, "
    "optimizer.clip_grad_norm_ and optimizer.clip_grad_value_ wait less. This is said once."
)
_live: weakref.WeakSet[Crossing] = weakref.WeakSet()


class Deliveries(Protocol):
    """What waits for gradients on their way."""

    def deliver(self, states: Iterable[ParameterState]) -> None:
        """Waits until the gradients of `states` are reduced, in `state.grad`."""

    def start_second_halves(self) -> None:
        """Starts to collect the sums of what is on its way in two halves."""


class Sender(Protocol):
    """What exchanges the gradients of an optimizer, as a Crossing needs it; see GradientReducer."""

    @property
    def overlap(self) -> str:
        """The mode, for messages."""

    @property
    def states(self) -> Sequence[ParameterState]:
        """The state of every parameter, by index."""

    @property
    def queue(self) -> Deliveries:
        """What is on its way back."""

    def is_on_its_way(self, state: ParameterState) -> bool:
        """False when a sent gradient still waits for `send_all`, here or on other ranks."""

    def send_all(self) -> None:
        """Sends what no backward pass has sent."""


class Crossing:
    """The updates of one optimizer that are committed and not done.  Thread-safe."""

    def __init__(self, reducer: Sender, optimizer: torch.optim.Optimizer) -> None:
        self._reducer = weakref.ref(reducer, functools.partial(_let_go, reducer.states))
        self._keep: Sender | None = None  # while an update needs it
        self._states = reducer.states
        self._optimizer = optimizer
        self._step = PartialStep(optimizer)
        self._lock = threading.RLock()
        self._queue: deque[DeferredUpdate] = deque()  # committed, in order of first use
        self._clip: GradientClip | None = None  # of the step that is committed
        self._max_value: float | None = None
        self.next_clip: GradientClip | None = None  # of the step that comes
        self.next_max_value: float | None = None
        self._order = OrderOfUse(self._states)
        self._has_warned = False
        _refuse_shared(self._states)
        _live.add(self)
        rabit.default_engine().before_close(self.flush)

    @property
    def is_recording(self) -> bool:
        """True in the step that shows in which order parameters are used."""
        return self._order.is_recording

    def start_recording(self) -> None:
        """Between steps: the next step waits like a barrier and shows what is read when."""
        self.flush()
        self._order.start(self)

    def stop_recording(self) -> tuple[list[int], list[int]]:
        """After the step: parameters (indices) in order of first use, and those not seen in use."""
        return self._order.stop()

    def stop(self) -> None:
        """Between steps: finishes everything and leaves the parameters alone."""
        self.flush()
        _let_go(self._states, None)
        _live.discard(self)

    def stop_watching(self) -> None:
        """What is read from here on counts as unseen, because it may be compiled code that reads."""
        self.flush()
        for state in self._states:
            if state.update is not None and state.update.phase is Phase.WATCHED:
                unguard(state.update)

    # --- called by guarded parameters -------------------------------------------------------------

    def value_is_read(self, update: DeferredUpdate, func: Callable[..., Any]) -> None:
        if update.is_committed:
            self.update(update)
        elif update.phase is Phase.WATCHED and func not in _NO_USE and is_forward_pass():
            self._order.see(update)

    def gradient_is_read(self, update: DeferredUpdate) -> None:
        if not update.is_hidden:
            return
        reducer = self._reducer()
        if reducer is not None and not self._has_warned:
            self._has_warned = True
            warnings.warn(_READ_WARNING.format(overlap=reducer.overlap), stacklevel=4)
        if reducer is not None and not reducer.is_on_its_way(update.state):
            reducer.send_all()
        self.reveal([update.state])

    def gradient_is_replaced(self, update: DeferredUpdate) -> None:
        if update.is_hidden:
            self.reveal([update.state])

    def is_copied(self, update: DeferredUpdate) -> None:
        if update.is_committed:
            self.update(update)
        elif update.is_hidden:
            self.reveal([update.state])

    # --- backward ---------------------------------------------------------------------------------

    def gradient_arrives(self, state: ParameterState) -> None:
        """Autograd has a gradient for `state`."""
        update = state.update
        if update is None:
            return
        if update.phase is Phase.WATCHED:
            unguard(update)
        elif update.is_committed:
            raise InvalidArgument(
                f"gradient '{state.name}' on rank {rabit.rank()} was computed although nothing has "
                "read the parameter since step(), so it belongs to the values before that step. "
                "Run the forward pass again after step(); where code outside of Python reads the "
                "parameter, call optimizer.flush() before"
            )

    def hide(self, state: ParameterState) -> None:
        """Takes the gradient of a parameter away until it is reduced or asked for."""
        if not self.is_recording and state.update is not None and can_guard(state.parameter):
            state.parameter.grad = None
            guard(state.update, Phase.HIDDEN)

    def reveal(self, states: Sequence[ParameterState]) -> None:
        """Waits for gradients that are not committed and puts them into `.grad`.  Blocks."""
        reducer = self._reducer()
        with self._lock:
            batch = _with_packs(states)
            try:
                if reducer is not None:
                    reducer.queue.deliver(batch)
            finally:
                for state in batch:
                    if state.is_hidden and state.update is not None:
                        unguard(state.update)
                        state.parameter.grad = state.grad

    # --- step -------------------------------------------------------------------------------------

    def commit(self) -> None:
        """A step of the optimizer.  Does not wait for gradients whose parameters tell of reads."""
        reducer = self._reducer()
        if reducer is not None:
            reducer.queue.start_second_halves()
        with self._lock:
            self._step.hooks("pre")
            hyper_parameters = self._step.hyper_parameters()
            known = {id(state.parameter): state for state in self._states}
            later: list[DeferredUpdate] = []
            late: list[DeferredUpdate] = []
            now: dict[int, list[torch.Tensor]] = {}
            for number, group in enumerate(self._optimizer.param_groups):
                for parameter in group["params"]:
                    state = known.get(id(parameter))
                    update = None if state is None else state.update
                    if update is None or not update.is_hidden:
                        if parameter.grad is not None:
                            now.setdefault(number, []).append(parameter)
                        continue
                    update.param_group = number
                    (later if update.is_seen else late).append(update)
            self._clip, self.next_clip = self.next_clip, None
            self._max_value, self.next_max_value = self.next_max_value, None
            if self._clip is not None and (now or late):  # A norm needs them all at once.
                late += later
                later = []
            self.reveal([update.state for update in late])
            late += [update for update in later if not update.is_hidden]
            later = [update for update in later if update.is_hidden]
            for update in late:
                now.setdefault(update.param_group, []).append(update.state.parameter)
            for update in later:
                update.commit(hyper_parameters)
            later.sort(key=lambda update: update.state.place)
            self._queue = deque(later)
            self._keep = self._reducer() if later else None
            if now:
                gradients = [p.grad for group in now.values() for p in group]
                if self._clip is not None:
                    self._clip.apply(gradients)
                    self._clip = None
                clip_values(gradients, self._max_value)
                self._step.run(now, hyper_parameters)
            # Gradients of parameters that the optimizer no longer has.
            self.reveal([state for state in self._states if state.is_hidden])
            self._step.hooks("post")

    # --- updates ----------------------------------------------------------------------------------

    def update(self, update: DeferredUpdate) -> None:
        """Waits for the gradient of a committed parameter and updates it.  Blocks."""
        with self._lock:
            reducer = self._keep
            if not update.is_committed or reducer is None:
                return
            try:
                if self._clip is not None:
                    self._clip_committed(reducer, self._clip)
                batch = self._deliver(reducer, update)
            except rabit.RabitError as error:
                _forget(_with_packs([update.state]))
                if not isinstance(error, rabit.Mismatch | rabit.InvalidArgument):
                    # The engine is lost, and with it every update that was to come.
                    _forget([waiting.state for waiting in self._queue])
                    self._queue.clear()
                    self._keep = None
                raise
            hyper_parameters = update.hyper_parameters
            assert hyper_parameters is not None
            for done in batch:
                unguard(done)
            clip_values([done.state.grad for done in batch], self._max_value)
            try:
                self._step.update(batch, hyper_parameters)
            finally:
                for done in batch:
                    done.state.grad = None
                if not self._queue:
                    self._keep = None

    def _deliver(self, reducer: Sender, update: DeferredUpdate) -> list[DeferredUpdate]:
        """Waits for `update`; returns it with those next in use that are there as well."""
        batch = _committed_with(update)
        reducer.queue.deliver(done.state for done in batch)
        taken = set(map(id, batch))
        while self._queue and len(batch) < _TAKE_ALONG:
            head = self._queue[0]
            if head.is_committed and id(head) not in taken:
                if not head.state.route.is_there():
                    break
                more = _committed_with(head)
                try:
                    reducer.queue.deliver(done.state for done in more)
                except rabit.RabitError:  # Whoever reads that parameter gets the error.
                    break
                batch += more
                taken.update(map(id, more))
            self._queue.popleft()
        return batch

    def _clip_committed(self, reducer: Sender, clip: GradientClip) -> None:
        """Clips all gradients of the step; measures each while the later ones still travel."""
        states = [update.state for update in self._queue]
        for state in states:
            reducer.queue.deliver(_with_packs([state]))
            if state.grad is not None:
                clip.measure(state.index, state.grad)
        clip.scale([state.grad for state in states if state.grad is not None])
        self._clip = None

    @property
    def pending(self) -> list[ParameterState]:
        """What is committed and not done, in order of first use."""
        return [update.state for update in self._queue if update.is_committed]

    def flush(self) -> None:
        """Waits for every committed update; raises the first error after all.  Blocks."""
        first_error: rabit.RabitError | None = None
        with self._lock:
            for update in list(self._queue):
                try:
                    self.update(update)
                except rabit.RabitError as error:
                    first_error = first_error or error
            self._queue.clear()
            self._keep = None
        if first_error is not None:
            raise first_error


def _refuse_shared(states: Sequence[ParameterState]) -> None:
    """Raises InvalidArgument if updates of one of `states` wait for another optimizer already."""
    mine = {id(state.parameter) for state in states}
    for other in list(_live):
        if other._reducer() is None:
            continue
        shared = [state.name for state in other._states if id(state.parameter) in mine]
        if shared:
            raise InvalidArgument(
                f"{len(shared)} parameters ({', '.join(shared[:3])}) already belong to another "
                "DistributedOptimizer that overlaps with the next forward pass; each parameter "
                "can wait for one of them only. Give the optimizers different parameters, or use "
                "overlap='backward' for one of them"
            )


def _let_go(states: Sequence[ParameterState], _: Any) -> None:
    """Updates wait no more: the reducer has gone, which lives as long as one waits, or changes its mode."""
    for state in states:
        if state.update is not None:
            unguard(state.update)
            state.update = None


def _with_packs(states: Sequence[ParameterState]) -> list[ParameterState]:
    """`states` and all that travel in one pack with them."""
    found: dict[int, ParameterState] = {}
    for state in states:
        found.update((id(mate), mate) for mate in state.route.mates)
    return list(found.values())


def _committed_with(update: DeferredUpdate) -> list[DeferredUpdate]:
    """The committed updates of what travels with the gradient of `update`, itself included."""
    updates = [mate.update for mate in _with_packs([update.state])]
    return [mate for mate in updates if mate is not None and mate.is_committed]


def _forget(states: Iterable[ParameterState]) -> None:
    for state in states:
        if state.update is not None:
            unguard(state.update)
        state.grad = None
