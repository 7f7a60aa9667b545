"""Packs: small gradients that travel as one tensor."""

from __future__ import annotations

import torch

from rabit import CompressionCodec
from rabit_torch.parameter_state import Pack, ParameterState

__all__ = ["make_packs"]

# A gradient of at most this size costs more to announce and to schedule than to copy.
_SMALL_BYTES = 128 * 1024
_PACK_BYTES = 512 * 1024

# What the members of a pack have in common: element type, device, codec of a strategy, and the backward pass of a
# step that brings them.
Kind = tuple[torch.dtype, torch.device, CompressionCodec | None, int]


def make_packs(
    states: list[ParameterState], prefix: str, span_bytes: int | None = None
) -> list[Pack]:
    """Packs of the small parameters, in the order in which backward passes reach them.

    states: all parameters.  span_bytes: how much of the model a pack may span, what lies between its
    members included: it leaves when its last gradient has arrived, with the urgency of the parameter
    that is needed first.  None: no limit.  The packs depend on their sizes and on `place` alone, so that they are
    equal on all ranks.
    """
    packs: list[Pack] = []
    open_: dict[Kind, list[ParameterState]] = {}
    sizes: dict[Kind, int] = {}
    starts: dict[Kind, int] = {}

    def close(kind: Kind) -> None:
        members = open_.pop(kind, [])
        if len(members) > 1:
            packs.append(Pack(members, prefix))

    passed = 0
    for state in sorted(states, key=lambda each: each.place, reverse=True):
        kind = (state.gradient_dtype, state.parameter.device, state.codec, state.arrived_in)
        size = state.bytes
        passed += size
        if size > _SMALL_BYTES or size == 0 or state.group is not None or not state.is_dense:
            continue
        is_alone = state.rows is not None or state.slot is not None or state.has_operands
        if not state.may_pack or is_alone:
            continue
        if kind in open_ and (
            sizes[kind] + size > _PACK_BYTES
            or (span_bytes is not None and passed - starts[kind] > span_bytes)
        ):
            close(kind)
        if kind not in open_:
            open_[kind], sizes[kind], starts[kind] = [], 0, passed - size
        open_[kind].append(state)
        sizes[kind] += size
    for kind in list(open_):
        close(kind)
    return packs
