"""An optimizer's state as torch has it, by number of the parameter, and by name, as a divided one has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from rabit import InvalidArgument, ProcessSet
from rabit.checkpoint import Part
from rabit.sharding import assembled, joined
from rabit_torch.ops.operations import WAITED
from rabit_torch.sharding.states import LATE, MASTER

__all__ = ["named", "numbered", "whole_of"]


def whole_of(
    label: str, what: str, parts: Sequence[Part], empty: torch.Tensor, length: int, process_set: ProcessSet
) -> torch.Tensor:
    """The `length` elements of a flattened tensor of which each rank has any number of parts.

    empty: of the tensor's type. Blocks until every rank calls it. Raises InvalidArgument if elements are on no rank.
    """
    places = [(part.start, len(part.value)) for part in parts]
    values = torch.cat([part.value for part in parts]) if parts else empty
    found: torch.Tensor = assembled(WAITED, label, what, places, values, length, process_set)
    return found


def named(
    state_dict: Mapping[str, Any], groups: Sequence[Sequence[str]], trained: Sequence[str]
) -> dict[str, Any]:
    """A state of torch's form by name.

    groups: names of all parameters of the optimizer's groups, in order. trained: of those that are divided.
    Raises InvalidArgument for another number of parameters.
    """
    numbers = [number for group in state_dict["param_groups"] for number in group["params"]]
    names = [name for group in groups for name in group]
    if len(numbers) != len(names):
        raise InvalidArgument(
            f"load_state_dict: the state is of {len(numbers)} parameters, and this optimizer has {len(names)}. Build "
            "it as the one that was saved"
        )
    found = {
        name: state_dict["state"].get(number, {})
        for number, name in zip(numbers, names, strict=True)
    }
    return {
        "state": {name: found[name] for name in trained},
        "param_groups": state_dict["param_groups"],
    }


def numbered(
    state_dict: Mapping[str, Any],
    optimizer: torch.optim.Optimizer,
    names: Mapping[torch.Tensor, str],
    process_set: ProcessSet,
) -> dict[str, Any]:
    """A state by name in the form of torch, with whole tensors. Blocks if it holds parts, which the ranks exchange.

    What parameters in 16 bits had in float32 (the masters) has no place there and is left out; values that were late
    go into the parameters.
    Raises InvalidArgument for a name that the optimizer does not have.
    """
    known = {
        names[parameter]
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter in names
    }
    unknown = sorted(set(state_dict["state"]) - known)
    if unknown:
        raise InvalidArgument(
            f"load_state_dict: the state has {', '.join(unknown[:5])}, which this optimizer does not have"
        )
    state: dict[int, Any] = {}
    groups = []
    number = 0
    for group, options in zip(optimizer.param_groups, state_dict["param_groups"], strict=True):
        first = number
        for parameter in group["params"]:
            values = state_dict["state"].get(names.get(parameter, ""), {})
            whole = {
                key: _whole(parameter, names[parameter], key, value, process_set)
                for key, value in values.items()
                if key != MASTER
            }
            if LATE in whole:
                parameter.data.copy_(whole.pop(LATE))
            if whole:
                state[number] = whole
            number += 1
        groups.append({**options, "params": list(range(first, number))})
    return {"state": state, "param_groups": groups}


def _whole(
    parameter: torch.Tensor, name: str, key: str, value: Any, process_set: ProcessSet
) -> Any:
    if not isinstance(value, Part):
        return value
    elements: torch.Tensor = joined(
        WAITED, f"sharded.whole.{name}.{key}", f"{key!r} of {name!r}", value, process_set
    )
    return elements.as_strided(parameter.shape, torch.empty_like(parameter, device="meta").stride())
