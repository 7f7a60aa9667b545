"""The seam for gradient methods.

An Exchange says HOW one array of every rank becomes one; a Strategy says WHAT travels WHEN.  Both are
`async` functions over Ranks, and `await` is the only place where ranks meet.  What a method does next
may depend on values that are equal on all ranks, on `ranks.step`, and on nothing else: ranks that took
different ways would wait for each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from .ranks import Ranks
from .wire import Wire

__all__ = [
    "Array",
    "Exchange",
    "Ranks",
    "Reduced",
    "Slot",
    "Strategy",
    "Wire",
    "gives_steps",
    "has_momentum",
    "parts_of",
]

Array = np.ndarray[Any, Any]


class Reduced(NamedTuple):
    """What came of an exchange.

    value: equal on all ranks, bit for bit.
    sent: what this rank's part amounts to after encoding; None: all of it.
    """

    value: Array
    sent: Array | None = None


class Slot(Protocol):
    """One parameter of one optimizer, as methods see it: with one dimension at least.

    value: the parameter; assigning an array changes it.
    grad: its gradient; a method leaves there what the optimizer is to use.  Read-only memory: methods
    assign a new array.
    state: the method's own, a tree of `rabit.training.state`.
    is_result: the gradient's memory is where its result goes, so that the last loop of an exchange may
    write there already.
    is_frozen: it has no gradient at this moment, on all ranks alike; a method that changes parameters leaves it alone.
    """

    name: str
    grad: Any
    state: Any
    is_result: bool

    @property
    def is_frozen(self) -> bool: ...

    @property
    def priority(self) -> int:
        """Larger goes first; of all rounds of its exchange."""

    @property
    def value(self) -> Array: ...

    @value.setter
    def value(self, array: Array) -> None: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the arrays that methods get; bfloat16 and float16 come as float32."""

    @property
    def lr(self) -> float:
        """The optimizer's learning rate for it, at this moment."""


class Exchange:
    """HOW one array of every rank becomes one; a frozen dataclass, compared and printed by its fields.

    Of one that is made of others, these say what it adds to them:
    has_momentum: it keeps momentum by itself, so that the optimizer must have none.
    gives_steps: what it leaves is a step, whose size is not that of the gradients: no loss scaler may divide it.
    needs_of_ranks: what it takes of their number, if a lost rank can break that; elastic jobs refuse it.
    """

    has_momentum: bool = False
    gives_steps: bool = False
    needs_of_ranks: str = ""

    @property
    def is_biased(self) -> bool:
        """True if what it leaves out is left out for good, unless it is added to what is sent next.

        It says in Reduced.sent what was not left out.
        """
        return False

    @property
    def is_noisy(self) -> bool:
        """True if it may lose more than it is given, so that a residual would grow without end."""
        return False

    def state(self, slot: Slot) -> Any:
        """What it keeps for a slot from step to step; None: nothing."""
        return None

    def takes(self, slot: Slot) -> bool:
        """False if it leaves a slot to the plain mean because it is small."""
        return True

    def wire(self, slot: Slot) -> Wire | None:
        """Not None: the engine does it by itself, and this is never called for that slot."""
        return None

    async def __call__(self, x: Array, state: Any, ranks: Ranks) -> Reduced:
        """Reduces x, which it does not change, with the arrays of the other ranks."""
        raise TypeError(f"{type(self).__name__} is an Exchange without __call__: write one.")

    async def with_residual(
        self, x: Array, residual: Array, factor: float, state: Any, ranks: Ranks
    ) -> tuple[Array, Array]:
        """The value of x + factor·residual, and what of it was not sent: for error feedback.

        Written again where both together cost less.
        """
        whole = x + (residual if factor == 1 else residual * x.dtype.type(factor))
        found = await self(whole, state, ranks)
        left = np.zeros_like(whole) if found.sent is None else whole - found.sent
        return found.value, left


class Strategy:
    """WHAT travels WHEN.  Every hook may be left out; left out, nothing travels there.

    uses_step: it has something to do between the gradients and the update, or after it, so that the
    update cannot be put off.  has_momentum, gives_steps, needs_of_ranks: as of an Exchange.
    replaces_step: it sets parameters by itself, and what an optimizer does in addition to lr·gradient (weight decay,
    maximize, clipping) is lost: the optimizer must do none of it.
    refuses_join: why no rank may call join while it trains, if so.
    own_of_rank: names of attributes that may differ between ranks; all others that are numbers, text or
    methods are compared before the first step.
    """

    uses_step: bool = False
    has_momentum: bool = False
    gives_steps: bool = False
    replaces_step: bool = False
    needs_of_ranks: str = ""
    refuses_join: str = ""
    own_of_rank: tuple[str, ...] = ()
    spec: str = ""  # the text that it was made of; "": by hand
    owner: str | None = None  # the optimizer that it belongs to

    def plan(self, slots: Sequence[Slot]) -> None:
        """Takes the parameters, and makes `slot.state` where it is None; on all ranks alike.

        Called again before the first step, with states that are None once more: parameters may have been
        broadcast or loaded in between.
        """

    def wire(self, slot: Slot) -> Wire | None:
        """Not None: the engine reduces the gradients of this slot by itself, in every step."""
        return None

    async def gradient(self, slot: Slot, ranks: Ranks) -> None:
        """`slot.grad` is complete on this rank; leaves there what the optimizer is to use."""

    async def before_step(self, ranks: Ranks) -> None:
        """All gradients are there."""

    async def after_step(self, ranks: Ranks) -> None:
        """Parameters are updated, and `ranks.step` steps have ended.  May sleep and continue later."""

    async def finish(self, ranks: Ranks) -> None:
        """Before saving, resizing and closing: brings in what is under way."""

    def state(self) -> Any:
        """What it keeps in addition to the states of the slots, as a tree."""
        return None

    def load(self, state: Any) -> None:
        """Takes a tree that `state` gave."""


def parts_of(method: Strategy | Exchange) -> Iterator[Strategy | Exchange]:
    """A method, and those that it is made of."""
    yield method
    for var in vars(method).values():
        if isinstance(var, Strategy | Exchange):
            yield from parts_of(var)


def has_momentum(method: Strategy | Exchange) -> bool:
    """Whether it or one of its parts keeps momentum by itself."""
    return any(part.has_momentum for part in parts_of(method))


def takes_nothing(method: Strategy | Exchange, slots: Sequence[Slot]) -> bool:
    """Whether a part of it leaves each of `slots` to the plain mean."""
    exchanges = [part for part in parts_of(method) if isinstance(part, Exchange)]
    return bool(slots) and any(not any(map(part.takes, slots)) for part in exchanges)


def gives_steps(method: Strategy | Exchange) -> bool:
    """Whether it or one of its parts leaves steps in place of gradients."""
    return any(part.gives_steps for part in parts_of(method))
