"""The arguments of DistributedOptimizer, checked, and what the configuration says in their place."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, get_args

import torch

import rabit
from rabit import Average, InvalidArgument, default_engine
from rabit_torch.optimizer.method import check_strategy_overlap
from rabit_torch.optimizer.mode import CROSSING, Overlap
from rabit_torch.overlap.partial_step import why_coupled

__all__ = [
    "check_overlap",
    "check_closure",
    "check_numbers",
    "checked_names",
    "checked_priorities",
    "chosen_overlap",
    "group_numbers",
    "refuse_with_adasum",
    "refuse_wrapped",
    "wants_auto",
]


def check_overlap(overlap: Any, optimizer: torch.optim.Optimizer, reducer: Any) -> None:
    """Raises InvalidArgument, with the reason, unless `optimizer` can work with this overlap."""
    known = get_args(Overlap)
    if overlap not in known:
        raise InvalidArgument(f"overlap is {overlap!r}; use one of {', '.join(map(repr, known))}")
    if getattr(reducer, "combines_steps", False) and overlap != "none":
        raise InvalidArgument(
            f"overlap={overlap!r} with op=Adasum: it combines the steps of the ranks inside step(), "
            "so there is nothing to overlap with. Leave overlap out"
        )
    check_strategy_overlap(getattr(getattr(reducer, "method", None), "strategy", None), overlap)
    reason = why_coupled(optimizer) if overlap in CROSSING else None
    if reason is not None:
        raise InvalidArgument(
            f"overlap={overlap!r} updates parameters one by one, and {reason}. "
            "Use overlap='backward' with this optimizer"
        )


def check_closure(reducer: Any) -> None:
    """Raises InvalidArgument if a step of `reducer` cannot evaluate a closure."""
    if reducer.method is not None:
        raise InvalidArgument(
            "step(closure) with a strategy: a closure may run the backward pass several times "
            "in one step. Call backward() yourself and step() without a closure"
        )
    if reducer.crossing is not None:
        raise InvalidArgument(
            f"step(closure) with overlap={reducer.overlap!r}: a closure needs the loss and the "
            "updated parameters inside the step. Use overlap='backward', or call backward() "
            "yourself and step() without a closure"
        )


def wants_auto(overlap: Any, optimizer: torch.optim.Optimizer) -> bool:
    """True if the mode is to be found by measuring, and the optimizer can work with any."""
    asked = default_engine().config.overlap if overlap is None else overlap
    return asked == "auto" and why_coupled(optimizer) is None


def chosen_overlap(overlap: Any, optimizer: torch.optim.Optimizer) -> Overlap:
    """The argument, checked; or what the configuration says, if the optimizer can."""
    asked: Any = default_engine().config.overlap if overlap is None else overlap
    if asked == "auto":
        return "backward"  # at first, or for good
    reason = why_coupled(optimizer) if overlap is None and asked in CROSSING else None
    if reason is not None:
        warnings.warn(
            f"RABIT_OVERLAP is {asked}, but {reason}; overlap='backward' is used instead",
            stacklevel=3,
        )
        return "backward"
    check_overlap(asked, optimizer, None)
    chosen: Overlap = asked
    return chosen


def check_numbers(factor: float, staleness: int, op: Any) -> None:
    """Raises InvalidArgument for a gradient_predivide_factor or a staleness that cannot be."""
    if factor != 1.0 and op != Average:
        raise InvalidArgument(
            f"gradient_predivide_factor is {factor} with op {op}; it can be used with op=Average only"
        )
    if factor <= 0:
        raise InvalidArgument(f"gradient_predivide_factor is {factor}; it must be positive")
    if staleness < 0:
        raise InvalidArgument(
            f"staleness is {staleness!r}; it must be a number of steps, from 0 on"
        )


def refuse_wrapped(optimizer: Any, wrapper: type) -> None:
    """Raises InvalidArgument for a `wrapper`, for an optimizer that holds one, and for what is not an optimizer.

    Frameworks put their own around an optimizer (Accelerate, Lightning), as an attribute.
    """
    kind = type(optimizer).__name__
    found, seen = optimizer, set()
    while found is not None and id(found) not in seen:
        if isinstance(found, wrapper):
            inside = "" if found is optimizer else f", inside of {kind},"
            raise InvalidArgument(
                f"{type(found).__name__}{inside} on rank {rabit.rank()} is wrapped by DistributedOptimizer already, "
                "and its gradients would be reduced twice. Wrap it once: by the framework, or by yourself"
            )
        seen.add(id(found))
        found = getattr(found, "optimizer", None) or getattr(found, "_optimizer", None)
    if not isinstance(getattr(optimizer, "param_groups", None), list):
        raise InvalidArgument(
            f"DistributedOptimizer on rank {rabit.rank()} wraps a torch.optim.Optimizer, not "
            f"{type(optimizer).__module__}.{kind}, which has no param_groups. Give the torch optimizer that the model "
            "trains with; for gradients of another library use rabit_torch.allreduce"
        )


def checked_names(
    optimizer: torch.optim.Optimizer, named_parameters: Iterable[tuple[str, torch.Tensor]] | None
) -> dict[torch.Tensor, str]:
    """Maps every parameter of the optimizer to a name that is equal on all ranks."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if named_parameters is None:
        return {p: f"parameter.{index}" for index, p in enumerate(parameters)}
    named = list(named_parameters)
    if any(not isinstance(item, tuple) or len(item) != 2 for item in named):
        raise InvalidArgument(
            "named_parameters must be (name, parameter) pairs; pass model.named_parameters()"
        )
    uses = Counter(name for name, _ in named)
    twice = sorted(name for name, count in uses.items() if count > 1)
    if twice:
        raise InvalidArgument(
            f"named_parameters names {', '.join(twice)} more than once; give every parameter its own name"
        )
    by_parameter = {p: name for name, p in named}
    unnamed = [index for index, p in enumerate(parameters) if p not in by_parameter]
    if unnamed:
        raise InvalidArgument(
            f"named_parameters leaves {len(unnamed)} of {len(parameters)} parameters of the optimizer "
            f"without a name (positions {unnamed[:5]}); name all of them, or pass no names at all"
        )
    return {p: by_parameter[p] for p in parameters}


def checked_priorities(
    priorities: Mapping[str, int] | None, names: dict[torch.Tensor, str]
) -> dict[str, int]:
    found = dict(priorities or {})
    strangers = sorted(set(found) - set(names.values()))
    if strangers:
        raise InvalidArgument(
            f"priorities: the optimizer has no parameter with the name {', '.join(map(repr, strangers[:5]))}; use the "
            "names of named_parameters"
        )
    for name, priority in found.items():
        if not isinstance(priority, int) or abs(priority) >= 1 << 31:
            raise InvalidArgument(
                f"the priority of {name!r} is {priority!r}; it must be an integer of 32 bits"
            )
    return found


def group_numbers(
    parameters: list[torch.Tensor], num_groups: int, groups: Any
) -> dict[torch.Tensor, int]:
    """Which parameters are sent together: parameter -> number of its group; absent: alone."""
    if groups is not None and not isinstance(groups, int):
        numbers = {p: number for number, group in enumerate(groups) for p in group}
        known = set(parameters)
        strangers = [p for p in numbers if p not in known]
        if strangers:
            raise InvalidArgument(
                f"groups holds {len(strangers)} tensors that are not parameters of the optimizer; "
                "pass lists of the same parameters"
            )
        return numbers
    wanted = groups if isinstance(groups, int) else num_groups
    if wanted < 0:
        raise InvalidArgument(f"num_groups is {wanted}; it must be 0 (no groups) or more")
    if wanted == 0:
        return {}
    size = -(-len(parameters) // wanted)
    return {p: index // size for index, p in enumerate(parameters)}


def refuse_with_adasum(is_grouped: bool) -> None:
    if is_grouped:
        raise InvalidArgument(
            "op=Adasum combines all parameters in one step; leave num_groups, groups and "
            "row_sparse out"
        )
