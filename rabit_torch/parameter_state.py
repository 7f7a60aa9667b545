"""ParameterState: what is known of one parameter between its gradient and its update.

Where updates cross into the next forward pass, each parameter has a DeferredUpdate, which is in one of four phases:

    PLAIN   --the step that records begins-------->  WATCHED    the first use is being looked for
    WATCHED --first use, or a gradient arrives---->  PLAIN
    PLAIN   --the gradient is sent---------------->  HIDDEN     `.grad` is None; the gradient travels
    HIDDEN  --step()------------------------------>  COMMITTED  with the hyper-parameters of that moment
    COMMITTED --the parameter is read------------->  PLAIN      updated, by whoever reads
    HIDDEN  --`.grad` is read, or replaced-------->  PLAIN      revealed: reduced, and in `.grad`

In every phase but PLAIN the parameter is of a class that reports reads (see `watched`).  A parameter whose reads were
never seen is revealed by step() and updated there.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

import torch

from rabit import CompressionCodec, RabitError

__all__ = ["DeferredUpdate", "HyperParameters", "Owner", "ParameterState", "Phase", "Route"]

# The hyper-parameters of every group of an optimizer, as they are when step() is called.
HyperParameters = list[dict[str, Any]]


class Route(ABC):
    """How one gradient travels, from where autograd has left it to where the trainer reads it.

    Chosen before the first step and when gradients are packed; `start` and `finish` once in a step.  Its user holds the
    lock of GradientArrivals, or is the trainer between passes.
    """

    __slots__ = ("codec", "handle", "order", "state", "stream")

    is_sparse = (
        False  # gradients hold touched rows only, and the zeros for an unused parameter hold none
    )
    takes_sparse = True  # False: a gradient that is sparse is made dense
    may_pack = False  # small ones travel in one tensor with others

    def __init__(self, state: ParameterState, codec: CompressionCodec) -> None:
        """codec: by which the engine encodes the gradient."""
        self.state = state
        self.codec = codec
        self.handle: Any = None  # what `finish` waits for; None: nothing is on its way
        self.order: int | None = None  # of axes in the memory that travels; None: none has so far
        self.stream: Any = None  # of CUDA, on which autograd has computed the gradient

    @property
    def mates(self) -> Sequence[ParameterState]:
        """The parameters whose gradients arrive together with this one, itself included."""
        return (self.state,)

    @abstractmethod
    def start(self, grad: torch.Tensor) -> None:
        """Starts the exchange of `grad`, in place where it can be; does not block.

        `handle` is set now, or when the queue submits what has started with it.
        """

    @abstractmethod
    def finish(self) -> None:
        """Blocks until the gradient is reduced, and puts it into `state.grad`.

        Raises what the engine reports; then the route is still to finish.
        """

    def is_there(self) -> bool:
        """True when `finish` would not block, or nothing is on its way."""
        return self.handle is None or self.handle.done()

    def drop(self) -> None:
        """Forgets an exchange that has failed."""
        self.handle = None

    def gives_way(self, error: RabitError) -> bool:
        """After `error`: whether another exchange has begun in its place, in another route of the state."""
        return False


class ParameterState:
    """One parameter: its gradient on the way, and the update that waits for it."""

    __slots__ = (
        "arrived_in",
        "bytes",
        "grad",
        "group",
        "index",
        "kind",
        "name",
        "parameter",
        "passes_left",
        "place",
        "priority",
        "route",
        "sparse_dim",
        "update",
        "was_absent",
    )

    route: Route  # set by who makes the state, before its first gradient

    def __init__(self, parameter: torch.Tensor, name: str, index: int, group: int | None) -> None:
        self.parameter = parameter
        self.name = name
        self.index = index
        self.group = group  # of gradients that travel together
        self.bytes = parameter.numel() * parameter.element_size()
        self.passes_left = 1
        self.kind: tuple[torch.dtype, int] | None = (
            None  # type and elements of gradients; None: there was none yet
        )
        self.grad: torch.Tensor | None = None  # the gradient that was sent in this step
        self.sparse_dim: int | None = None  # of gradients that travel dense (sparse_as_dense)
        self.was_absent = False  # from some step so far, on this rank
        self.arrived_in = 0  # the number of the backward pass of its step that has sent it last
        self.priority: int | None = None  # as the user wants it; None: by order of first use
        self.place = index  # in the order of first use
        self.update: DeferredUpdate | None = None  # where updates cross into the next forward pass

    @property
    def gradient_dtype(self) -> torch.dtype:
        """What gradients have, or will have: torch lets a parameter want another type than its own."""
        if self.kind is not None:
            return self.kind[0]
        wanted: torch.dtype | None = getattr(self.parameter, "grad_dtype", None)
        return wanted or self.parameter.dtype

    @property
    def is_sent(self) -> bool:
        return self.grad is not None

    @property
    def is_committed(self) -> bool:
        """A step has used the gradient, and the update still waits."""
        return self.update is not None and self.update.is_committed

    @property
    def is_hidden(self) -> bool:
        """The gradient is sent, and not in `.grad`."""
        return self.update is not None and self.update.is_hidden

    def give(self, grad: torch.Tensor) -> None:
        """The gradient is `grad`, reduced; the trainer reads it, unless it is hidden or its update waits."""
        if self.sparse_dim is not None and not grad.is_sparse:
            grad = grad.to_sparse(self.sparse_dim)  # Sent dense for the caller's sake.
        self.grad = grad
        if self.update is None or self.update.phase is _PLAIN:
            self.parameter.grad = grad


class Phase(enum.Enum):
    """Where an update is; the head of this file has the transitions."""

    PLAIN = 0
    WATCHED = 1
    HIDDEN = 2
    COMMITTED = 3


# Quicker to read than attributes of an Enum, and every gradient of a crossing asks.
_PLAIN, _, _HIDDEN, _COMMITTED = Phase


class Owner(Protocol):
    """The object that reads of guarded parameters are reported to; see Crossing."""

    def value_is_read(self, update: DeferredUpdate, func: Any) -> None:
        """Code is about to read the parameter.  func: of torch."""

    def gradient_is_read(self, update: DeferredUpdate) -> None:
        """Code is about to read `.grad`."""

    def gradient_is_replaced(self, update: DeferredUpdate) -> None:
        """Code is about to set `.grad`."""

    def is_copied(self, update: DeferredUpdate) -> None:
        """Code is about to copy the parameter."""


class DeferredUpdate:
    """One for each parameter of an optimizer whose updates cross into the next forward pass."""

    __slots__ = ("hyper_parameters", "is_seen", "owner", "param_group", "phase", "state")

    def __init__(self, state: ParameterState, owner: Owner) -> None:
        self.state = state
        self.owner = owner
        self.phase: Phase = _PLAIN
        self.is_seen = False  # reads come through Python, so that the update can wait for one
        self.hyper_parameters: HyperParameters | None = None  # of the step that has committed it
        self.param_group = 0  # its number in the optimizer at that step

    @property
    def is_hidden(self) -> bool:
        """The gradient is sent, and no step has used it."""
        return self.phase is _HIDDEN

    @property
    def is_committed(self) -> bool:
        """A step has been taken, and the parameter still has the values of before."""
        return self.phase is _COMMITTED

    def commit(self, hyper_parameters: HyperParameters) -> None:
        """HIDDEN to COMMITTED."""
        self.phase, self.hyper_parameters = _COMMITTED, hyper_parameters
