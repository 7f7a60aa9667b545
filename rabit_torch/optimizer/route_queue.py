"""RouteQueue: starts routes together, and finishes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch

from rabit import Batch, Handle, RabitError
from rabit.framework import Operands
from rabit_torch.optimizer.requests import GradientRequests
from rabit_torch.parameter_state import ParameterState, Route
from rabit_torch.tensors import stream_of, wait_for_stream

__all__ = ["Halves", "PartialPack", "RouteQueue", "TwoStage"]


class Halves(Protocol):
    """An exchange in two halves; see ScatterGather."""

    task: Any  # which finishes with the second half

    @property
    def first_half(self) -> Any:
        """The handle of the sum."""

    def open(self) -> None:
        """Lets the second half start when the first has finished."""

    def wait_for_sum(self) -> None:
        """Waits for the first half."""


class PartialPack(Protocol):
    """A pack of which some gradients have arrived; see Pack."""

    def absent(self) -> list[ParameterState]:
        """The states whose gradients have not arrived."""

    def send(self) -> None:
        """Sends what has arrived."""

    def forget(self) -> None:
        """Nothing of it has arrived."""


class TwoStage(Protocol):
    """Indices that go before rows; see Rows."""

    def wait_for_indices(self) -> None:
        """Waits until every rank has said which rows it sends; they can leave then."""


class RouteQueue:
    """Of one optimizer.  `add`, `flush` and `put` never wait; one thread at a time: those of autograd, which
    GradientArrivals lets in, and the trainer.
    """

    def __init__(
        self, requests: GradientRequests, tasks: Any, progress: Callable[[], None] | None
    ) -> None:
        """tasks: of the engine (driver_of).  progress: continues with the tasks of a strategy; None: there is none."""
        self.requests = requests
        self.pending_bytes = 0
        self.zeros: list[Route] = []  # of dense zeros for what this rank has not used in this step
        self.packs: list[PartialPack] = []  # that have begun to fill
        self.two_stage: list[TwoStage] = []  # that have started in this step
        self._tasks = tasks
        self._progress = progress
        self._pending: list[Route] = []
        self._ready: list[
            tuple[Route, Any]
        ] = []  # whose requests leave next, and what owns their memory
        self._halves: list[
            tuple[int, Halves]
        ] = []  # whose second half has not been let start, and their places

    def add(self, state: ParameterState) -> None:
        """The gradient of `state` leaves with the next flush."""
        self._pending.append(state.route)
        self.pending_bytes += state.bytes

    def flush(self) -> None:
        """Starts everything that was added; what the engine does by itself leaves with one call."""
        if not self._pending:
            return
        pending, self._pending, self._ready, self.pending_bytes = self._pending, [], [], 0
        for route in pending:
            if route.stream is not None:
                # Autograd computes a gradient on the stream of its forward pass; what sends it runs on that of the
                # last one.
                wait_for_stream(route.stream)
            grad = route.state.grad
            assert grad is not None, "of what arrives, until next_step"
            route.start(grad)
        if self._progress is not None:
            self._progress()
        ready, self._ready = self._ready, []
        if ready:
            batch = self._batch()
            handles = batch.submit(
                [route.state.index for route, _ in ready], [keep for _, keep in ready]
            )
            for (route, _), handle in zip(ready, handles, strict=True):
                route.handle = handle

    def put(self, route: Route, wire: torch.Tensor, operands: Operands | None = None) -> None:
        """The prepared request of a gradient leaves at the end of this flush.

        wire: the memory that travels.  operands: of the codec.
        """
        batch = self._batch()
        index, pointer = route.state.index, wire.data_ptr()
        batch.set_pointers(index, pointer, pointer, stream_of(wire))
        keep: Any = wire
        if operands is not None:
            residual = operands.residual
            batch.set_operands(
                index, 0 if residual is None else residual.ctypes.data, operands.seed
            )
            keep = wire, residual
        self._ready.append((route, keep))

    def _batch(self) -> Batch:
        batch = self.requests.batch
        return self.requests.prepare() if batch is None else batch

    def submit(self, route: Route, wire: torch.Tensor) -> Any:
        """Submits the prepared request of a gradient now; returns its handle."""
        batch = self._batch()
        index, pointer = route.state.index, wire.data_ptr()
        batch.set_pointers(index, pointer, pointer, stream_of(wire))
        (handle,) = batch.submit([index], [wire])
        return handle

    def add_halves(self, place: int, halves: Halves) -> None:
        """The first half of `halves` has started.  place: of the parameter, in the order of use."""
        self._halves.append((place, halves))

    def next_step(self) -> None:
        """Forgets what belongs to the step."""
        self.zeros.clear()
        self.two_stage.clear()
        for pack in self.packs:
            pack.forget()
        self.packs.clear()

    # --- waiting ----------------------------------------------------------------------------------

    def start_second_halves(self) -> None:
        """Waits for the sums of what is on its way in two halves, and starts to collect them.

        All of them, even if the caller needs one: ranks may ask in different orders.
        """
        halves, self._halves = self._halves, []
        for _, half in halves:
            half.open()
        for _, half in sorted(halves, key=lambda placed: placed[0]):
            half.wait_for_sum()
            self._tasks.pump()

    def deliver(self, states: Iterable[ParameterState]) -> None:
        """Waits until the gradients of `states` are reduced, in `state.grad`.

        After an error, which is raised at once, the gradient counts as not delivered.  Of what it does not wait
        for, no second half starts: the first may lack what another rank sends only after this rank has gone on.
        """
        states = list(states)
        if self._tasks.open:
            self._tasks.pump()
        tasks = {id(half.task) for _, half in self._halves}
        if any(id(state.route.handle) in tasks for state in states):
            self.start_second_halves()
        for state in states:
            if state.route.handle is not None:
                state.route.finish()

    def settle(self, states: Iterable[ParameterState]) -> None:
        """Waits for everything of `states`; raises the first error after all have finished."""
        if self.zeros:
            self.replace_refused()
        first_error: RabitError | None = None
        try:
            self.start_second_halves()
        except RabitError as error:
            first_error = error
        for state in states:
            if state.route.handle is None:
                continue
            try:
                self.deliver((state,))
            except RabitError as error:
                first_error = first_error or error
                state.route.drop()
        if first_error is not None:
            raise first_error

    def replace_refused(self) -> None:
        """Waits for the dense zeros that were sent, and replaces those that ranks with sparse gradients refuse.

        As they finish, not one after the other: a rank may wait in its backward pass for the rows of one, and send its
        own zeros for another one only after that.
        """
        zeros, self.zeros = self.zeros, []
        pending = [route for route in zeros if isinstance(route.handle, Handle)]
        while pending:
            self.requests.engine.wait_any([route.handle for route in pending])
            for route in [route for route in pending if route.handle.done()]:
                pending.remove(route)
                try:
                    route.handle.wait()
                except RabitError as error:  # `settle` raises it again, if it is another one
                    route.gives_way(error)

    def awaited(self, states: Iterable[ParameterState]) -> list[Any]:
        """What `settle(states)` waits for first; of gradients in two halves the first half."""
        found = [half.first_half for _, half in self._halves]
        whole = {id(half.task) for _, half in self._halves}
        handles = (state.route.handle for state in states)
        return found + [
            handle for handle in handles if handle is not None and id(handle) not in whole
        ]
