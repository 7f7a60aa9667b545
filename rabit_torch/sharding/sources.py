"""Where the whole values of a unit come from: an exchange of all ranks, or a pull from the ranks that own them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch

import rabit
from rabit import ProcessSet
from rabit.sharding import FlatLayout, ServedParts
from rabit_torch.sharding.flats import PartStorage

__all__ = ["GATHERS", "CollectiveSource", "PulledSource", "Source", "TwoGatherSource", "check_gather", "made_source"]

GATHERS = ("collective", "pull")


class Source(Protocol):
    """One thread at a time."""

    is_collective: bool  # a unit is gathered on all ranks or on none

    def begin(self, storages: Sequence[PartStorage], prefix: str) -> None:
        """These are all storages, of version 0. Blocks until every rank calls it, before the first gather."""

    def gather(
        self, unit: str, version: int, storages: Sequence[PartStorage], values: Sequence[torch.Tensor]
    ) -> list[Any]:
        """Starts to collect the values of each storage; returns what is waited for."""

    def fetch(self, version: int, storages: Sequence[PartStorage]) -> None:
        """Has what the next gather of this rank needs of these storages in memory. Does not block."""

    def let_go(self, version: int, storages: Sequence[PartStorage], values: Sequence[torch.Tensor]) -> None:
        """The whole values of this version, which are there, are about to be forgotten."""

    def close(self, storages: Sequence[PartStorage]) -> None:
        """This rank is about to change its parts."""

    def open(self, storages: Sequence[PartStorage], version: int) -> None:
        """The parts of this rank have this version."""

    def meet(self) -> None:
        """Blocks until no rank reads values that are about to change; every rank calls it."""


class CollectiveSource:
    """A gather of the engine, which carries the name of the flat."""

    is_collective = True

    def begin(self, storages: Sequence[PartStorage], prefix: str) -> None:
        """A gather needs nothing but its storage."""

    def gather(
        self, unit: str, version: int, storages: Sequence[PartStorage], values: Sequence[torch.Tensor]
    ) -> list[Any]:
        return [
            storage.gather(target) for storage, target in zip(storages, values, strict=True)
        ]

    def fetch(self, version: int, storages: Sequence[PartStorage]) -> None:
        for storage in storages:
            storage.fetch()

    def let_go(self, version: int, storages: Sequence[PartStorage], values: Sequence[torch.Tensor]) -> None:
        """They are gathered again from the same parts."""

    def close(self, storages: Sequence[PartStorage]) -> None:
        """Nobody reads parts of this rank but in a gather."""

    def open(self, storages: Sequence[PartStorage], version: int) -> None:
        """Every rank gathers the version that it has."""

    def meet(self) -> None:
        """The gathers have the ranks wait for each other."""


class TwoGatherSource(CollectiveSource):
    """The first gather of a version is one of all ranks; those that follow are of `group`, from parts that it has kept.

    Source: Wang et al., ZeRO++: Extremely Efficient Collective Communication (2023), hpZ.
    """

    def __init__(self, group: ProcessSet) -> None:
        self.group = group
        self._rows = FlatLayout((), group.size())  # of any flat
        self._kept: dict[PartStorage, tuple[int, torch.Tensor]] = {}  # with the version

    def gather(
        self, unit: str, version: int, storages: Sequence[PartStorage], values: Sequence[torch.Tensor]
    ) -> list[Any]:
        handles = []
        for storage, target in zip(storages, values, strict=True):
            kept = self._kept.get(storage)
            if kept is not None and kept[0] == version:
                handles.append(storage.start_gather(kept[1], target, self.group, "again"))
            else:
                handles.append(storage.gather(target))
        return handles

    def fetch(self, version: int, storages: Sequence[PartStorage]) -> None:
        super().fetch(version, [storage for storage in storages if self._kept.get(storage, (-1, None))[0] != version])

    def let_go(self, version: int, storages: Sequence[PartStorage], values: Sequence[torch.Tensor]) -> None:
        for storage, whole in zip(storages, values, strict=True):
            kept = self._kept.get(storage)
            if kept is not None and kept[0] == version:
                continue
            start, length = self._rows.part(storage.flat, self.group.rank())
            own = whole[start : start + length]
            self._kept[storage] = version, own.clone() if kept is None else kept[1].copy_(own)


class PulledSource:
    """Parts that their owners serve."""

    is_collective = False

    def __init__(self) -> None:
        self._numbers: dict[PartStorage, int] = {}
        self._ranks: list[int] = []
        self._parts: ServedParts | None = None  # of one rank there are no others

    def begin(self, storages: Sequence[PartStorage], prefix: str) -> None:
        process_set = storages[0].levels.shards
        self._numbers = {storage: number for number, storage in enumerate(storages)}
        self._ranks = process_set.ranks or list(range(rabit.size()))
        if len(self._ranks) > 1:
            own = {number: _memory(storage.own()) for storage, number in self._numbers.items()}
            self._parts = ServedParts(own, process_set, prefix)
            self.open(storages, 0)

    def gather(
        self, unit: str, version: int, storages: Sequence[PartStorage], values: Sequence[torch.Tensor]
    ) -> list[Any]:
        reads = []
        for storage, target in zip(storages, values, strict=True):
            for place, rank in enumerate(self._ranks):
                start, length = storage.rows_of(place)
                rows = target[start : start + length]
                if place == storage.rank:
                    rows.copy_(storage.own())
                elif length:
                    reads.append((rank, self._numbers[storage], _memory(rows)))
        if self._parts is None or not reads:
            return []
        own = self._ranks[storages[0].rank]
        # The owners after this rank first, so that ranks that pull together begin at different ones.
        reads.sort(key=lambda read: (read[0] - own) % len(self._ranks))
        return [self._parts.pull(f"parameters of {unit!r} on rank {own}", version, reads)]

    def fetch(self, version: int, storages: Sequence[PartStorage]) -> None:
        """Parts that are served lie in memory."""

    def let_go(self, version: int, storages: Sequence[PartStorage], values: Sequence[torch.Tensor]) -> None:
        """They are pulled again."""

    def close(self, storages: Sequence[PartStorage]) -> None:
        for storage in storages:
            if self._parts is not None:
                self._parts.close(self._numbers[storage])

    def open(self, storages: Sequence[PartStorage], version: int) -> None:
        for storage in storages:
            if self._parts is not None:
                self._parts.open(self._numbers[storage], version)

    def meet(self) -> None:
        if self._parts is not None:
            self._parts.meet()


def check_gather(gather: str, offload: str | None, backward_within: Any, device: torch.device) -> None:
    """Raises InvalidArgument for a word that is not in GATHERS, and for arguments that do not go together."""
    if gather not in GATHERS:
        raise rabit.InvalidArgument(
            f"shard: gather is {gather!r}; expected one of {', '.join(map(repr, GATHERS))}"
        )
    if gather == "pull" and offload is not None:
        raise rabit.InvalidArgument(
            f"shard: gather='pull' serves parts from memory, and offload={offload!r} has them on disk. Leave one out"
        )
    if gather == "pull" and backward_within is not None:
        raise rabit.InvalidArgument(
            f"shard: with gather='pull' a rank reads alone, and backward_within={backward_within!r} has the ranks of a "
            "group gather together. Leave one out"
        )
    if device.type != "cpu" and (gather == "pull" or offload is not None):
        given = f"gather={gather!r}" if offload is None else f"offload={offload!r}"
        raise rabit.InvalidArgument(
            f"shard: {given} has the parts in host memory, and the model is on {device}. Leave it out, or move the "
            "model to the CPU. DistributedOptimizer(offload=...) keeps the optimizer's state on the host or on disk"
        )


def made_source(gather: str, backward_group: ProcessSet | None) -> Source:
    """Of a word in GATHERS. backward_group: the ranks of the gathers that follow the first of a version; None: all."""
    if gather == "pull":
        return PulledSource()
    return CollectiveSource() if backward_group is None else TwoGatherSource(backward_group)


def _memory(values: torch.Tensor) -> memoryview:
    """The bytes of contiguous values."""
    memory: memoryview = values.detach().view(torch.uint8).flatten().numpy().data
    return memory
