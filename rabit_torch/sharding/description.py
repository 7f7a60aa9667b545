"""What dividing a model costs and saves, as numbers and as a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from rabit import InvalidArgument
from rabit.sharding import Levels, RankBytes, rank_bytes, wire_bytes
from rabit_torch.sharding.host_shared import SharedParameter
from rabit_torch.sharding.model import divided_model
from rabit_torch.sharding.sizes import Sizes
from rabit_torch.sharding.sources import TwoGatherSource

__all__ = ["Description", "describe"]

_PULLED = ", if it runs every unit; it reads those that it runs from their owners"


@dataclass(frozen=True)
class Description:
    """What dividing a model costs and saves; `str()` gives a table.

    units: name and bytes of each unit. kept: bytes of tensors that stay whole. rank: bytes on rank 0 between two
    steps, with `state_bytes` per element. wire: bytes that a rank receives in a step. window: bytes of units that
    are whole at a time. gather: as in `shard`. host: bytes of parameters that the ranks of a host have together.
    disk: bytes of parameters and state that rank 0 has on disk, twice.
    """

    units: Mapping[str, int]
    kept: int
    rank: RankBytes
    wire: int
    window: int
    gather: str = "collective"
    host: int = 0
    disk: int = 0

    def __str__(self) -> str:
        if self.host:
            return (
                f"per host: parameters {self.host:,} bytes, which its ranks share\n"
                f"per rank: gradients {self.rank.gradients:,}, state {self.rank.state:,} bytes\n"
                f"received per rank and step: {self.wire:,} bytes"
            )
        width = max(map(len, self.units), default=4)
        lines = [f"{name:<{width}}  {size:>14,} bytes" for name, size in self.units.items()]
        lines += [
            f"{len(self.units)} units; tensors that stay whole: {self.kept:,} bytes",
            f"per rank: parameters {self.rank.parameters:,}, gradients {self.rank.gradients:,}, state "
            f"{self.rank.state:,} bytes, and a window of {self.window:,}",
            f"received per rank and step: {self.wire:,} bytes{_PULLED if self.gather == 'pull' else ''}",
        ]
        if self.disk:
            lines.append(f"parameters and state on disk per rank: two files of {self.disk:,} bytes in all")
        return "\n".join(lines)


def describe(model: torch.nn.Module, *, state_bytes: int = 8) -> Description:
    """The units of a model that `shard` has divided, its bytes per rank and per step. Does not communicate.

    state_bytes: of the optimizer for each element: 8 for Adam in float32, 4 for momentum, 0 for SGD. A model whose
    parameters the ranks of a host share has no units, and its wire bytes are those of one backward pass per step.
    Raises InvalidArgument for another one.
    """
    divided = divided_model(model)
    if divided is None:
        shared = [parameter for parameter in model.parameters() if isinstance(parameter, SharedParameter)]
        if shared:
            return _described_shared(shared, state_bytes)
        raise InvalidArgument(
            f"describe: {type(model).__name__} is not divided. Call rabit_torch.sharding.shard(model) before"
        )
    gathers = divided.gathers
    second = gathers.source.group if isinstance(gathers.source, TwoGatherSource) else None
    sizes = Sizes(model, divided.layout, state_bytes, divided.tier is not None, second)
    wire = wire_bytes(sizes.rest, "gradients") + wire_bytes(divided.layout, "parameters")
    if second is not None:  # One of the two gathers is of this group.
        whole, parts = sum(unit.bytes for unit in gathers.units), divided.layout.parts
        wire += whole * parts * (second.size() - 1) // second.size() - whole * (parts - 1)
    return Description(
        {unit.name: unit.bytes for unit in gathers.units},
        sizes.kept,
        sizes.rank,
        wire // divided.layout.parts + _between_copies(divided.levels, sizes.rank.gradients),
        gathers.window,
        "collective" if gathers.source.is_collective else "pull",
        disk=sizes.disk,
    )


def _described_shared(parameters: list[SharedParameter], state_bytes: int) -> Description:
    storage, _ = parameters[0].rabit_shared
    layout, hosts = storage.layout, storage.memory.hosts
    whole, gradients, state = rank_bytes(layout, "gradients", 0, state_bytes)
    # Of the two exchanges of a step, the gather brings each host what the others own.
    wire = whole * (layout.parts - 1 + len(hosts) - 1) // layout.parts
    wire += _between_copies(storage.levels, gradients)
    return Description({}, 0, RankBytes(0, gradients, state), wire, 0, host=whole)


def _between_copies(levels: Levels, gradients: int) -> int:
    """Bytes that a rank receives for the mean of its part of the gradients over the copies of the part."""
    copies = 1 if levels.copies is None else levels.copies.size()
    return 2 * gradients * (copies - 1) // copies
