"""Packs: small gradients that travel as one tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from ._reducer import Slot

__all__ = ["Pack", "make_packs"]

# A gradient of at most this size costs more to announce and to schedule than to copy.
_SMALL_BYTES = 128 * 1024
_PACK_BYTES = 512 * 1024


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
        "slots",
        "views",
    )

    def __init__(self, slots: list[Slot], prefix: str) -> None:
        self.slots = slots
        first, last = slots[-1].name, slots[0].name[len(prefix) + 1 :]
        self.name = f"{first}..{last}"
        counts = [slot.parameter.numel() for slot in slots]
        self.buffer = torch.zeros(sum(counts), dtype=slots[0].parameter.dtype)
        self.all_views = [
            part.view(slot.parameter.shape)
            for part, slot in zip(self.buffer.split(counts), slots, strict=True)  # type: ignore[no-untyped-call]
        ]
        self.arrived = 0
        self.views: list[torch.Tensor] = []  # of what travels, and the gradients it is for
        self.gradients: list[torch.Tensor] = []
        self.batch: Any = None
        self.handle: Any = None

    def fill(self) -> None:
        """Copies the gradients that have arrived into the buffer, and zeros for the others."""
        self.arrived = 0
        self.views, self.gradients = self.all_views, []
        for slot in self.slots:
            if slot.in_pack and slot.grad is not None:
                self.gradients.append(slot.grad)
        if len(self.gradients) < len(self.slots):
            self.buffer.zero_()
            self.views = [
                view
                for slot, view in zip(self.slots, self.all_views, strict=True)
                if slot.in_pack and slot.grad is not None
            ]
        for slot in self.slots:
            slot.in_pack = False
        with torch.no_grad():
            torch._foreach_copy_(self.views, self.gradients)

    def finish(self) -> None:
        """Waits, then copies the results back."""
        handle, self.handle = self.handle, None
        gradients, self.gradients = self.gradients, []
        handle.wait()
        with torch.no_grad():
            torch._foreach_copy_(gradients, self.views)


def make_packs(slots: list[Slot], prefix: str) -> list[Pack]:
    """Packs of the small parameters, in the order in which backward passes reach them.

    It depends on the parameters alone, so that the packs are equal on all ranks.
    """
    packs: list[Pack] = []
    open_: dict[torch.dtype, list[Slot]] = {}
    sizes: dict[torch.dtype, int] = {}

    def close(dtype: torch.dtype) -> None:
        members = open_.pop(dtype, [])
        sizes.pop(dtype, None)
        if len(members) > 1:
            packs.append(Pack(members, prefix))

    for slot in reversed(slots):
        parameter = slot.parameter
        size = parameter.numel() * parameter.element_size()
        if size > _SMALL_BYTES or size == 0:
            continue
        if sizes.get(parameter.dtype, 0) + size > _PACK_BYTES:
            close(parameter.dtype)
        open_.setdefault(parameter.dtype, []).append(slot)
        sizes[parameter.dtype] = sizes.get(parameter.dtype, 0) + size
    for dtype in list(open_):
        close(dtype)
    return packs
