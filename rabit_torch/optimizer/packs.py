"""Packs: small gradients that travel as one tensor."""

from __future__ import annotations

import torch

from rabit_torch.parameter_state import Pack, ParameterState

__all__ = ["make_packs"]

# A gradient of at most this size costs more to announce and to schedule than to copy.
_SMALL_BYTES = 128 * 1024
_PACK_BYTES = 512 * 1024


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
    open_: dict[torch.dtype, list[ParameterState]] = {}
    sizes: dict[torch.dtype, int] = {}
    starts: dict[torch.dtype, int] = {}

    def close(dtype: torch.dtype) -> None:
        members = open_.pop(dtype, [])
        if len(members) > 1:
            packs.append(Pack(members, prefix))

    passed = 0
    for state in sorted(states, key=lambda each: each.place, reverse=True):
        dtype, size = state.parameter.dtype, state.bytes
        passed += size
        if size > _SMALL_BYTES or size == 0 or state.group is not None or not state.is_dense:
            continue
        if not state.may_pack or state.rows is not None or state.slot is not None:
            continue
        if dtype in open_ and (
            sizes[dtype] + size > _PACK_BYTES
            or (span_bytes is not None and passed - starts[dtype] > span_bytes)
        ):
            close(dtype)
        if dtype not in open_:
            open_[dtype], sizes[dtype], starts[dtype] = [], 0, passed - size
        open_[dtype].append(state)
        sizes[dtype] += size
    for dtype in list(open_):
        close(dtype)
    return packs
