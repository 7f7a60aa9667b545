"""ParameterState: what is known of one parameter between its gradient and its update.

A Pack is several of them that travel as one tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch

from rabit import CompressionCodec, Handle

__all__ = ["Early", "HyperParameters", "Pack", "ParameterState", "Rows", "SentPart"]

# The hyper-parameters of every group of an optimizer, as they are when step() is called.
HyperParameters = list[dict[str, Any]]


class SentPart(NamedTuple):
    """The early part of a gradient on its way."""

    local: torch.Tensor | None  # of this rank; None: zero
    wire: Any  # the tensor that is reduced in place
    handle: Any


class Early(Protocol):
    """The part of one gradient that leaves before the rest; see EarlyPart."""

    is_looked_up: bool
    is_multiplied: bool
    is_agreed: bool
    is_decided: bool

    def listen(self) -> None:
        """From here on, uses are told apart.  Between steps."""

    def stop(self) -> None:
        """The gradient is complete: the optimizer must find a plain parameter."""

    def resume(self) -> None:
        """Listens again if `listen` has been called."""

    def pause(self) -> None:
        """Makes the parameter a plain one for a while."""

    def take(self) -> SentPart:
        """What has been sent in this step, or is sent now.  Once in a step, on every rank."""

    def next_step(self) -> None:
        """Forgets the step."""


class Rows(Protocol):
    """The exchange of the touched rows of one gradient; see RowExchange."""

    def wait_for_indices(self) -> None:
        """Waits until every rank has said which rows it sends; they can leave then."""

    def start(self, codec: Any, priority: int, send_dense: Callable[[], Handle]) -> Any:
        """Starts the exchange of the gradient, in place; gives what is to be waited for."""


class ParameterState:
    """One parameter: its gradient on the way, and the update that waits for it.

    sent: `grad` is set.  Committed: `step()` has been called, `hyper_parameters` is set, and the
    update happens when the parameter is read.  The modes of overlap differ only in when they wait.
    """

    __slots__ = (
        "arrived_in",
        "axis_order",
        "bytes",
        "codec",
        "context",
        "count",
        "dtype",
        "early",
        "grad",
        "group",
        "handle",
        "has_operands",
        "hyper_parameters",
        "in_pack",
        "index",
        "is_dense",
        "is_guarded",
        "is_seen",
        "is_watched",
        "may_pack",
        "name",
        "owner",
        "pack",
        "param_group",
        "parameter",
        "passes_left",
        "place",
        "priority",
        "rows",
        "slot",
        "sparse_dim",
        "stream",
        "two_halves",
        "was_absent",
        "wire",
    )

    def __init__(self, parameter: torch.Tensor, name: str, index: int, group: int | None) -> None:
        self.parameter = parameter
        self.name = name
        self.index = index
        self.group = group  # of gradients that travel together
        self.bytes = parameter.numel() * parameter.element_size()
        self.passes_left = 1
        self.dtype: torch.dtype | None = None  # of its gradients; None: there was none yet
        self.count = 0  # of their elements
        self.axis_order: int | None = None  # in which they travel; None: none has so far
        self.grad: torch.Tensor | None = None  # the gradient that was sent in this step
        self.wire: torch.Tensor | None = None  # what travels for it; often the same memory
        self.stream: Any = None  # of CUDA, on which autograd has computed `grad` and nothing has followed yet
        self.context: Any = None  # of a compression in Python
        self.handle: Any = None
        self.two_halves: Any = None  # its ScatterGather, where gradients travel so
        self.slot: Any = None  # if a strategy exchanges its gradient
        self.codec: CompressionCodec | None = None  # of a strategy, where the engine applies it
        self.has_operands = False  # that codec takes a residual or a seed
        self.is_dense = True  # no gradient has been sparse so far
        self.sparse_dim: int | None = None  # of gradients that travel dense (sparse_as_dense)
        self.rows: Rows | None = None  # if its touched rows travel
        self.early: Early | None = None  # if its rows travel: what may leave before them
        self.pack: Pack | None = None
        self.may_pack = True
        self.was_absent = False  # from some step so far, on this rank
        self.arrived_in = 0  # the number of the backward pass of its step that has sent it last
        self.in_pack = False  # its gradient waits for the others of its pack
        self.priority: int | None = None  # as the user wants it; None: by order of first use
        self.place = index  # in the order of first use
        self.owner: Any = None  # the Crossing that is told of reads while the parameter is guarded
        self.is_guarded = False
        self.is_watched = False  # its first use is being recorded
        self.is_seen = False  # reads of it come through Python, so that they can wait
        self.hyper_parameters: HyperParameters | None = None
        self.param_group = 0  # of the optimizer; the number at the time of step()

    @property
    def gradient_dtype(self) -> torch.dtype:
        """What gradients have, or will have: torch lets a parameter want another type than its own."""
        wanted: torch.dtype | None = getattr(self.parameter, "grad_dtype", None)
        return self.dtype or wanted or self.parameter.dtype

    @property
    def is_sent(self) -> bool:
        return self.grad is not None

    @property
    def is_committed(self) -> bool:
        return self.hyper_parameters is not None


class Pack:
    """Gradients of neighbouring parameters, copied into one buffer when all have arrived."""

    __slots__ = (
        "all_views",
        "arrived",
        "batch",
        "buffer",
        "gradients",
        "handle",
        "name",
        "states",
        "two_halves",
        "views",
    )

    def __init__(self, states: list[ParameterState], prefix: str) -> None:
        self.states = states
        first, last = states[-1].name, states[0].name[len(prefix) + 1 :]
        self.name = f"{first}..{last}"
        counts = [state.parameter.numel() for state in states]
        first_parameter, dtype = states[0].parameter.detach(), states[0].gradient_dtype
        self.buffer = first_parameter.new_zeros(sum(counts), dtype=dtype)
        self.all_views = [
            part.view(state.parameter.shape)
            for part, state in zip(self.buffer.split(counts), states, strict=True)  # type: ignore[no-untyped-call]
        ]
        self.arrived = 0
        self.views: list[torch.Tensor] = []  # of what travels, and the gradients it is for
        self.gradients: list[torch.Tensor] = []
        self.batch: Any = None
        self.handle: Any = None
        self.two_halves: Any = None

    def fill(self) -> list[str]:
        """Copies the gradients that have arrived into the buffer, and zeros for the others, whose names it gives."""
        self.arrived = 0
        self.views, self.gradients = self.all_views, []
        absent: list[str] = []
        for state in self.states:
            if state.in_pack and state.grad is not None:
                self.gradients.append(state.grad)
            else:
                absent.append(state.name)
        if absent:
            self.buffer.zero_()
            self.views = [
                view
                for state, view in zip(self.states, self.all_views, strict=True)
                if state.in_pack and state.grad is not None
            ]
        for state in self.states:
            state.in_pack = False
        with torch.no_grad():
            torch._foreach_copy_(self.views, self.gradients)
        return absent

    def finish(self) -> None:
        """Waits, then copies the results back.  After an error it is still to finish."""
        self.handle.wait()
        self.handle = None
        gradients, self.gradients = self.gradients, []
        with torch.no_grad():
            torch._foreach_copy_(gradients, self.views)
