"""Which parameters of a model are gathered together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from rabit import InvalidArgument
from rabit_torch.sharding.tiles import TiledLinear

__all__ = ["Units", "UnitPlan", "planned_units"]

Units = Iterable[str] | Iterable[type] | Callable[[str, torch.nn.Module], bool] | None
_CONTAINERS = (torch.nn.ModuleList, torch.nn.Sequential, torch.nn.ModuleDict)


@dataclass(frozen=True)
class UnitPlan:
    """Parameters that are gathered when `module` runs, by name in the model. is_whole: with those of its children."""

    name: str
    module: torch.nn.Module
    parameters: dict[str, torch.nn.Parameter]
    is_whole: bool


def planned_units(model: torch.nn.Module, units: Units, keep: int) -> list[UnitPlan]:
    """The units of a model, in the order of its modules; a parameter belongs to the first that has it.

    units: names of modules, classes, or a function of name and module that says whether a module is one; None:
    repeated children of containers, and the modules outside of these. A tile of a TiledLinear is one anywhere. What no
    unit holds is gathered with the module that owns it. Tensors up to `keep` elements, and those that are not of a
    floating type, are left out.
    Raises InvalidArgument if `units` matches no module.
    """
    tiles = {tile for module in model.modules() if isinstance(module, TiledLinear) for tile in module.tiles}
    in_tiles = {parameter for tile in tiles for parameter in tile.parameters()}
    chosen = list(_repeated("", model) if units is None else _matching(model, units))
    chosen = [(name, module) for name, module in chosen if module not in tiles]
    inside: set[torch.nn.Module] = set()
    for _, module in chosen:
        inside |= set(module.modules()) - {module}
    found = [(name, module, True) for name, module in chosen if module not in inside]
    found += [(name, module, True) for name, module in model.named_modules() if module in tiles]
    whole = {part for _, module, _ in found for part in module.modules()}
    found += [
        (name, module, False)
        for name, module in model.named_modules()
        if module not in whole and any(True for _ in module.parameters(recurse=False))
    ]
    order = {module: place for place, module in enumerate(model.modules())}
    found.sort(key=lambda unit: order[unit[1]])
    taken: set[torch.nn.Parameter] = set()
    plans = []
    for name, module, is_whole in found:
        own = {}
        for label, parameter in module.named_parameters(prefix=name, recurse=is_whole):
            if parameter in in_tiles and module not in tiles:
                continue
            if parameter not in taken and parameter.numel() > keep and parameter.is_floating_point():
                own[label] = parameter
                taken.add(parameter)
        if own:
            plans.append(UnitPlan(name or type(module).__name__, module, own, is_whole))
    return plans


def _matching(model: torch.nn.Module, units: Any) -> Iterator[tuple[str, torch.nn.Module]]:
    if callable(units) and not isinstance(units, type):
        chosen = [(name, module) for name, module in model.named_modules() if units(name, module)]
    else:
        given = [units] if isinstance(units, str | type) else list(units)
        names = {each for each in given if isinstance(each, str)}
        kinds = tuple(each for each in given if isinstance(each, type))
        if len(names) + len(set(kinds)) != len(set(given)):
            raise InvalidArgument(
                f"units is {units!r}; expected names of modules, classes of modules, or a function of name and module"
            )
        known = dict(model.named_modules())
        unknown = sorted(names - set(known))
        if unknown:
            raise InvalidArgument(
                f"units: {type(model).__name__} has no module {', '.join(map(repr, unknown))}; it has "
                f"{', '.join(repr(name) for name in known if name)}"
            )
        chosen = [
            (name, module)
            for name, module in known.items()
            if name in names or isinstance(module, kinds)
        ]
    if not chosen:
        raise InvalidArgument(f"units={units!r} matches no module of {type(model).__name__}")
    yield from chosen


def _repeated(name: str, module: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    """Children of containers whose class is there more than once, and modules in which nothing is repeated."""
    counts = Counter(type(child) for child in module.children())
    for label, child in module.named_children():
        full = f"{name}.{label}" if name else label
        is_repeated = isinstance(module, _CONTAINERS) and counts[type(child)] > 1
        if is_repeated and not isinstance(child, _CONTAINERS):
            yield full, child
        elif any(isinstance(part, _CONTAINERS) for part in child.modules()):
            yield from _repeated(full, child)
        else:
            yield full, child
