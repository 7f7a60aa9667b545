"""Bytes of a model whose parameters are divided."""

from __future__ import annotations

import torch

from rabit import ProcessSet
from rabit.sharding import Entry, FlatLayout, RankBytes, rank_bytes

__all__ = ["Sizes"]


class Sizes:
    """Of a model that is divided by `layout`. rest: what stays whole. kept: bytes of that. rank: of rank 0, in memory.

    disk: bytes of rank 0 on disk, where parameters and state are there. second: see TwoGatherSource.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        layout: FlatLayout,
        state_bytes: int,
        is_on_disk: bool,
        second: ProcessSet | None,
    ) -> None:
        names = {entry.name for entry in layout.entries}
        entries = [
            Entry(
                name,
                tuple(parameter.shape),
                str(parameter.dtype).removeprefix("torch."),
                is_trained=parameter.requires_grad,
            )
            for name, parameter in model.named_parameters()
            if name not in names
        ]
        self.rest = FlatLayout(entries, layout.parts)
        self.count = sum(entry.count for entry in (*entries, *layout.entries))
        kept = rank_bytes(self.rest, "gradients", 0, state_bytes)
        own = rank_bytes(layout, "parameters", 0, state_bytes)
        self.kept = kept.parameters
        self.disk = 0
        if is_on_disk:
            self.disk = own.parameters + own.state + kept.state
            own, kept = RankBytes(0, own.gradients, 0), kept._replace(state=0)
        if second is not None:
            again = rank_bytes(FlatLayout(layout.entries, second.size()), "parameters")
            own = own._replace(parameters=own.parameters + again.parameters)
        self.rank = RankBytes(*(first + second for first, second in zip(kept, own, strict=True)))
