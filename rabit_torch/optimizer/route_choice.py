"""RouteChoice: which way each gradient goes."""

from __future__ import annotations

from collections.abc import Iterable

from rabit_torch.optimizer.layout import GradientLayout
from rabit_torch.optimizer.method import Method
from rabit_torch.optimizer.mode import OverlapMode
from rabit_torch.optimizer.packs import Pack
from rabit_torch.optimizer.route_queue import RouteQueue
from rabit_torch.optimizer.routes import ByHand, Halved, Plain
from rabit_torch.optimizer.row_sparse import RowSparse
from rabit_torch.parameter_state import ParameterState, Route

__all__ = ["RouteChoice"]


class RouteChoice:
    """The one place that tells the cases apart; equal on all ranks.

    A gradient that turns out to be sparse leaves the route that was chosen (see GradientArrivals), and small ones are
    packed after the first step (see GradientLayout).
    """

    def __init__(
        self, layout: GradientLayout, queue: RouteQueue, mode: OverlapMode, method: Method | None
    ) -> None:
        """Raises InvalidArgument if `row_sparse` cannot be as it was asked for."""
        self._layout = layout
        self._queue = queue
        self._mode = mode
        self._method = method
        self._reduction = queue.requests.reduction
        self._rows = RowSparse(layout.states, layout.prefix, self._reduction)

    def choose(self, states: Iterable[ParameterState]) -> None:
        """Between steps: gives each state the route of its next gradient.  Nothing of it is on its way."""
        for state in states:
            state.route = self._route(state)

    def travel_alone(self) -> None:
        """Between steps: no gradient is packed in the next one, which ends with a plan."""
        layout = self._layout
        layout.unpack()
        layout.is_stale = True
        # On the mode only the routes of whole dense gradients depend.
        self.choose(state for state in layout.states if state.route.may_pack)
        self._queue.requests.forget()  # They hold the priorities.

    def pack(self) -> None:
        """Between steps, on all ranks after the same one: small gradients travel together.  Blocks."""
        self.travel_alone()
        self._layout.is_stale = False
        if self._reduction.compressor is None:
            partition_bytes = self._queue.requests.engine.config.partition_bytes
            self._layout.pack(
                self._make_pack, None if self._mode.crossing is None else partition_bytes
            )

    def _make_pack(self, states: list[ParameterState]) -> Pack:
        is_halved = self._mode.is_halved and not states[0].route.codec.spec
        return Pack(states, self._layout.prefix, self._queue, is_halved=is_halved)

    def _route(self, state: ParameterState) -> Route:
        codec, compressor, queue = self._reduction.codec, self._reduction.compressor, self._queue
        if compressor is not None:
            return ByHand(state, codec, queue.requests, compressor)
        rows = self._rows.route(state, codec, queue)
        if rows is not None:
            return rows
        route = (
            Plain(state, codec, queue) if self._method is None else self._method.route(state, queue)
        )
        if self._mode.is_halved and route.may_pack and not route.codec.spec:
            return Halved(state, route.codec, queue)
        return route
