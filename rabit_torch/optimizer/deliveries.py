"""Deliveries: waits for gradients on their way, and puts them where the trainer reads them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import rabit
from rabit import RabitError
from rabit_torch.optimizer.sender import GOES_SPARSE, GradientSender
from rabit_torch.parameter_state import ParameterState
from rabit_torch.tensors import copy_last, keep_for_stream

__all__ = ["Deliveries"]


class Deliveries:
    """What a GradientSender has sent, on its way back."""

    def __init__(self, sender: GradientSender, tasks: Any) -> None:
        """tasks: what runs the tasks of the engine (rabit.framework.driver_of)."""
        self._sender = sender
        self._tasks = tasks
        self.zeros: list[ParameterState] = []  # dense ones, sent for what this rank has not used

    def is_there(self, state: ParameterState) -> bool:
        """True when `deliver` would not block."""
        handle = state.handle
        if handle is None and state.pack is not None:
            handle = state.pack.handle
        return handle is None or handle.done()

    def awaited(self, states: Iterable[ParameterState]) -> list[Any]:
        """What `settle(states)` waits for first; of gradients in two halves the first half."""
        halves = {half for _, half in self._sender.halves}
        found: list[Any] = [half.first_half for half in halves]
        for state in states:
            sent = state.pack if state.handle is None and state.pack is not None else state
            if sent.handle is not None and sent.two_halves not in halves:
                found.append(sent.handle)
        return found

    def start_second_halves(self) -> None:
        """Waits for the sums of what is on its way in two halves, and starts to collect them.

        Of everything, whoever asks for whatever: ranks may ask in different orders.
        """
        halves, self._sender.halves = self._sender.halves, []
        for _, half in halves:
            half.open()
        for _, half in sorted(halves, key=lambda each: each[0]):
            half.wait_for_sum()
            self._tasks.pump()

    def deliver(self, states: Iterable[ParameterState]) -> None:
        """Waits until the gradients of `states` are reduced, in `state.grad`.

        After an error, which is raised at once, the gradient counts as not delivered.
        """
        self._tasks.pump()
        self.start_second_halves()
        for state in states:
            if state.pack is not None and state.pack.handle is not None:
                state.pack.finish()
                for member in state.pack.states:
                    _make_sparse_again(member)
            if state.handle is not None:
                self._finish(state)
                _make_sparse_again(state)

    def settle(self, states: Iterable[ParameterState]) -> None:
        """Waits for everything of `states`; raises the first error after all have finished."""
        self.replace_refused()
        first_error: rabit.RabitError | None = None
        try:
            self.deliver(())
        except rabit.RabitError as error:
            first_error = error
        for state in states:
            if state.handle is None and (state.pack is None or state.pack.handle is None):
                continue
            try:
                self.deliver([state])
            except rabit.RabitError as error:
                first_error = first_error or error
                _drop(state)
        if first_error is not None:
            raise first_error

    def _finish(self, state: ParameterState) -> None:
        try:
            result = state.handle.wait()
        except RabitError as error:
            if not self._is_replaced(state, error):
                raise
            result = state.handle.wait()
        state.handle = None
        if state.grad is None:
            return
        if state.slot is not None:
            state.slot.write_back()
        elif state.grad.is_sparse:
            state.grad = result
            if not state.is_guarded:
                state.parameter.grad = result
        elif self._sender.is_compressed:
            assert state.wire is not None
            copy_last(state.grad, self._sender.compressor.decompress(state.wire, state.context))
            keep_for_stream(state.wire)
        elif state.wire is not state.grad and state.wire is not None:
            copy_last(state.grad, state.wire)
        state.wire = state.context = None

    def _is_replaced(self, state: ParameterState, error: RabitError) -> bool:
        """True if rows have been sent, none, for zeros that a rank has refused whose gradient is sparse."""
        grad = state.grad
        if GOES_SPARSE not in str(error) or grad is None or grad.is_sparse:
            return False
        if grad.any():
            self._sender.refuse_rows(state)
            return False
        self._sender.send_no_rows(state)
        return True

    def replace_refused(self) -> None:
        """Waits for the dense zeros that were sent, and replaces those that ranks with sparse gradients refuse.

        As they finish, not one after the other: a rank may wait in its backward pass for the rows of one, and send its
        own zeros for another one only after that.
        """
        zeros, self.zeros = self.zeros, []
        pending = [state for state in zeros if isinstance(state.handle, rabit.Handle)]
        while pending:
            rabit.default_engine().wait_any([state.handle for state in pending])
            for state in [each for each in pending if each.handle.done()]:
                pending.remove(state)
                try:
                    state.handle.wait()
                except RabitError as error:  # `settle` raises it again, if it is another one
                    self._is_replaced(state, error)


def _make_sparse_again(state: ParameterState) -> None:
    """What was sent dense for the caller's sake reaches an optimizer that wants it sparse."""
    if state.sparse_dim is None or state.grad is None or state.grad.is_sparse:
        return
    state.grad = state.grad.to_sparse(state.sparse_dim)
    if not state.is_guarded:
        state.parameter.grad = state.grad


def _drop(state: ParameterState) -> None:
    """Forgets what has failed on the way."""
    state.handle = None
    if state.pack is not None and state.pack.handle is not None and state.pack.handle.done():
        state.pack.handle = None
