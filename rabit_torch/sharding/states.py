"""The state of an optimizer for this rank's slices of its parameters, in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from rabit import InvalidArgument
from rabit.sharding import Interval
from rabit_torch.sharding.flats import Storage

__all__ = ["LATE", "MASTER", "MemoryStates", "Place", "States", "refreshed"]

MASTER = "master"  # of a parameter in 16 bits: its values in float32
LATE = "late"  # of a delayed update: values that the parameter gets in the next step


class Place:
    """A trained parameter: where it lies, and this rank's slice of it.

    A slice may be empty: the optimizer keeps counts for it as the owners do. values: where the slice lies, a copy of
    this rank's part; None: in the storage.
    """

    def __init__(
        self, parameter: torch.Tensor, name: str, group: int, storage: Storage, place: int, values: Any = None
    ) -> None:
        self.parameter = parameter
        self.name = name
        self.group = group  # of the optimizer
        self.storage = storage
        self.place = place
        self.values: Any = storage if values is None else values
        self.has_master = storage.has_master
        self.renew()

    def renew(self) -> None:
        """Takes the slice that the storage has now."""
        self.slice = torch.nn.Parameter(self.values.slice_of(self.place))
        self.passes = 0  # of the backward pass in this step
        self.is_used = False

    def set_gradient(self, is_used: bool) -> None:
        """Gives the slice its part of the averaged gradient; None for a parameter that no rank has used."""
        gradient = self.values.gradient(self.place) if is_used else None
        if gradient is not None and self.has_master:
            gradient = gradient.float()
        self.slice.grad = gradient

    @property
    def interval(self) -> Interval:
        """The elements of the slice."""
        return self.storage.interval(self.place)

    @property
    def strides(self) -> tuple[int, ...]:
        return self.storage.strides[self.place]


class States(Protocol):
    """Where the state lies. One thread at a time."""

    is_late: bool  # parameters get values later than the state says

    def step(self) -> None:
        """Steps the optimizer with the gradients of the slices."""

    def publish(self) -> None:
        """Gives the parameters the values that are late."""

    def refusal(self) -> InvalidArgument | None:
        """Why `publish` would be wrong: the update has failed, or would undo what this rank has written.

        Blocks until no update runs.
        """

    def get(self, place: Place) -> dict[str, Any]:
        """The state of a slice, with its master if that is more than the values of the parameter."""

    def set(self, place: Place, state: dict[str, Any]) -> None:
        """Replaces it; without a master, the values of the parameter are taken."""

    def close(self) -> None:
        """Nothing is stepped from here on."""


class MemoryStates:
    """In memory: the optimizer's groups hold the slices of `places`, and its `state` is theirs."""

    is_late = False

    def __init__(self, optimizer: torch.optim.Optimizer, places: Sequence[Place]) -> None:
        self._optimizer = optimizer
        self._masters = [place for place in places if place.has_master]
        self._has_masters = False  # that are more than the values of the parameters

    def step(self) -> None:
        self._has_masters = True
        for place in self._masters:
            master = place.slice.data
            refreshed(master, place.values.elements(place.place), master)
        self._optimizer.step()
        for place in self._masters:
            place.values.elements(place.place).copy_(place.slice.detach())

    def get(self, place: Place) -> dict[str, Any]:
        state = dict(self._optimizer.state.get(place.slice, {}))
        return {**state, MASTER: place.slice.detach()} if place.has_master and self._has_masters else state

    def set(self, place: Place, state: dict[str, Any]) -> None:
        own = dict(state)
        master = own.pop(MASTER, None)
        if place.has_master:
            self._has_masters = master is not None
            place.slice.data.copy_(place.values.elements(place.place) if master is None else master)
        self._optimizer.state.pop(place.slice, None)
        if own:
            self._optimizer.state[place.slice] = own

    def publish(self) -> None:
        pass

    def refusal(self) -> InvalidArgument | None:
        return None

    def close(self) -> None:
        pass


def refreshed(master: torch.Tensor, values: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """`out`: the master of a parameter, with what has been written into the parameter since the last update."""
    return torch.where(master.to(values.dtype) == values, master, values.float(), out=out)
