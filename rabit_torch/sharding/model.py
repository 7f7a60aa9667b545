"""Models whose parameters are divided among the ranks: whole while a module runs, in parts otherwise.

Source: Rajbhandari et al., ZeRO: Memory Optimizations Toward Training Trillion Parameter Models (2020), stage 3.
The backward pass gathers again what it needs, through saved-tensor hooks.
"""

from __future__ import annotations

import contextlib
import statistics
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Literal, cast

import torch

import rabit
from rabit import InvalidArgument, Mismatch, ProcessSet, global_process_set
from rabit.checkpoint import Part
from rabit.framework import follow_default_engine, refuse_in_elastic_jobs
from rabit.sharding import (
    DiskTier,
    Entry,
    FlatLayout,
    Levels,
    check_room,
    joined,
    levels_of,
    unit_bytes,
)
from rabit_torch.ops.operations import WAITED
from rabit_torch.sharding.divided import DividedValues, without_values
from rabit_torch.sharding.flats import PartStorage
from rabit_torch.sharding.gathers import Gathers, Unit
from rabit_torch.sharding.guarded import Divided, DividedParameter, divide
from rabit_torch.sharding.meta import (
    device_of_values,
    give_values,
    is_on_meta,
    owners_of,
    share_values,
)
from rabit_torch.sharding.parts_on_disk import DiskStorage, made_tier, step_bytes
from rabit_torch.sharding.sizes import Sizes
from rabit_torch.sharding.slots import give_back_pages, return_large_blocks
from rabit_torch.sharding.sources import Source, check_gather, made_source
from rabit_torch.sharding.units import UnitPlan, Units, planned_units

__all__ = ["DividedModel", "check_layouts", "divided_model", "gathered", "shard", "whole"]

# Tensors up to so many elements stay whole: they are most of a model's tensors, and little of its bytes.
KEEP = 2**16
_models: weakref.WeakKeyDictionary[torch.nn.Module, DividedModel] = weakref.WeakKeyDictionary()


def shard(
    model: torch.nn.Module,
    *,
    units: Units = None,
    keep: int = KEEP,
    window: int | None = None,
    gather: str = "collective",
    process_set: ProcessSet = global_process_set,
    within: Literal["host"] | int | None = None,
    backward_within: Literal["host"] | int | None = None,
    offload: str | None = None,
    state_bytes: int | Literal["disk"] = 0,
) -> torch.nn.Module:
    """Divides the parameters of `model` among the ranks of `process_set`; returns the model, of the same class.

    Its values are those of the first rank. A unit is gathered when its module runs, and again in the backward pass.
    units: names of modules, classes, or a function of name and module that says whether a module is gathered as one;
    None: the repeated children of ModuleList and Sequential, and the other modules. keep: tensors up to this many
    elements stay whole on every rank. window: bytes of units that are whole at a time; None: two units of the middle
    size, or one and a half of the largest. gather: "collective" gathers a unit on all ranks at once; with "pull" a
    rank that needs a unit reads it from the ranks that own its parts, while the others do something else, so ranks
    may run different modules, or a different number of passes. A read is of the version that the last step has
    left: it waits for an owner that has not come to that, and raises Mismatch for one that has a later one.
    within: "host", or the number of successive ranks that divide the parameters; other groups have copies of the
    parts. None: all ranks. backward_within: as `within`, of the ranks that gather a unit again, in the backward pass
    and until the next step: each also keeps a part of what the first gather has given. offload: "disk:PATH" keeps the
    parts, and the state of the optimizer, in files of a folder of this host: a rank reads its part ahead of each
    gather, and has it in memory for that time alone. Neither goes with "pull".
    A model on a CUDA device has parts and units there, and takes neither "pull" nor offload.

    Blocks until every rank calls it. Raises InvalidArgument for a model that is divided already, that is not on the
    CPU or on one CUDA device, or in which no tensor is large enough; Mismatch if the models of the ranks differ. Passes
    and steps raise IntegrityError where a file differs from what was written.

    A model on the meta device gets its values here, unit by unit, by reset_parameters() of its modules on the first
    rank: on torch's default device if that is one of CUDA, else on the CPU, where it raises ResourceExhausted before
    anything is allocated if a host has not enough memory for it.
    state_bytes: of the optimizer for each element, which are to fit too, or "disk" where they lie there;
    DistributedOptimizer(model=...) knows them.
    """
    device = _check(model)
    check_gather(gather, offload, backward_within, device)
    kept = {
        "gather='pull'": gather == "pull",
        "within": within is not None or backward_within is not None,
        "offload": offload is not None,
        "a process set": process_set is not global_process_set,
    }
    refuse_in_elastic_jobs("shard", kept, "Divide the model among all ranks, with gather='collective'")
    plans = _plans(model, units, keep)
    prefix = rabit.default_engine().next_name("divided")
    levels = levels_of(process_set, within)
    second = None if backward_within is None else levels_of(process_set, backward_within).shards
    layout = FlatLayout(_entries(plans), levels.shards.size())
    joins = rabit.default_engine().config.joins
    if not joins:
        check_layouts(layout, process_set, prefix)
        _check_places(model, device, process_set, prefix)
    size = _window(layout) if window is None else window
    if is_on_meta(model) and device.type == "cpu" and not joins:
        sizes = Sizes(model, layout, 0 if state_bytes == "disk" else state_bytes, offload is not None, second)
        aside = 0
        if offload is not None or state_bytes == "disk":  # What comes from there; the state is that of Adam.
            times = 2 if offload is None else 3
            aside = min(times * sizes.rank.gradients, step_bytes(4 * times))
        largest = max(unit_bytes(layout).values())
        check_room(
            f"shard: {type(model).__name__} of {sizes.count:,} parameters, in {layout.parts} parts",
            # Of gradients, two units are on their way while a third is filled.
            sizes.rank.total + aside + size + 3 * largest,
            "Use more hosts, shard a larger part, or keep the optimizer's state on disk (offload)",
            process_set,
            f"{prefix}.room",
        )
    return_large_blocks()
    tier = None if offload is None else made_tier(offload, process_set)
    source = made_source(gather, second)
    _models[model] = DividedModel(model, plans, layout, size, source, levels, prefix, tier)
    give_back_pages()
    return model


def _plans(model: torch.nn.Module, units: Units, keep: int) -> list[UnitPlan]:
    plans = planned_units(model, units, keep)
    if not plans:
        largest = max((parameter.numel() for parameter in model.parameters()), default=0)
        raise InvalidArgument(
            f"shard: the largest tensor of {type(model).__name__} has {largest} elements, and tensors up to {keep} "
            "stay whole, so nothing is divided. Use shard='gradients', or rabit_torch.sharding.shard(model, keep=0)"
        )
    return plans


def _window(layout: FlatLayout) -> int:
    """Two units of the middle size, or one and a half of the largest."""
    sizes = list(unit_bytes(layout).values())
    return max(2 * int(statistics.median(sizes)), max(sizes) * 3 // 2)


def _check(model: torch.nn.Module) -> torch.device:
    """The device of a model that can be divided."""
    kind = type(model).__name__
    if not isinstance(model, torch.nn.Module):
        raise InvalidArgument(f"shard: model is {kind}; expected a torch.nn.Module")
    found: dict[torch.device, str] = {}
    for name, parameter in model.named_parameters():
        if isinstance(parameter, DividedParameter):
            raise InvalidArgument(
                f"shard: {name!r} of {kind} is divided already; shard a model once"
            )
        device = device_of_values() if parameter.is_meta else parameter.device
        if device.type not in ("cpu", "cuda"):
            raise InvalidArgument(
                f"shard: {name!r} of {kind} on rank {rabit.rank()} is on {device}; parameters are divided on the CPU "
                "and on CUDA devices. Move the model there, or use shard='gradients'"
            )
        where = f"{parameter.device} and gets values on {device}" if parameter.is_meta else f"{device}"
        found.setdefault(device, f"{name!r} is on {where}")
    if len(found) > 1:
        places = ", and ".join(found.values())
        raise InvalidArgument(f"shard: of {kind} on rank {rabit.rank()}, {places}. Move the model to one device")
    return next(iter(found), torch.device("cpu"))


def _check_places(model: torch.nn.Module, device: torch.device, process_set: ProcessSet, prefix: str) -> None:
    """Raises Mismatch on every rank if they would take other steps to give the model its values. Collective."""
    place = f"on meta (values on {device.type})" if is_on_meta(model) else f"on {device.type}"
    told = rabit.allgather_object((rabit.rank(), place), f"{prefix}.places", process_set)
    for rank, other in told:
        if other != told[0][1]:
            raise Mismatch(
                f"shard: {type(model).__name__} is {told[0][1]} on rank {told[0][0]}, and {other} on rank {rank}. "
                "Build it in the same way on every rank, with torch's default device set before"
            )


def check_layouts(layout: FlatLayout, process_set: ProcessSet, prefix: str) -> None:
    """Raises Mismatch on a rank whose layout is not that of the others. Blocks until every rank calls it."""

    def gather(own: Any) -> Any:
        return rabit.allgather(own, name=f"{prefix}.layout", process_set=process_set)

    rank = layout.first_other(gather)
    if rank is not None:
        raise Mismatch(
            f"shard: rank {rank} has other trained parameters than rank {process_set.rank()}. Give every rank the "
            "same model, and freeze the same parameters"
        )


class DividedModel:
    """The parts of a model on this rank, and the hooks that gather its units. One thread at a time."""

    def __init__(
        self,
        model: torch.nn.Module,
        plans: list[UnitPlan],
        layout: FlatLayout,
        window: int,
        source: Source,
        levels: Levels,
        prefix: str,
        tier: DiskTier | None = None,
    ) -> None:
        self.layout = layout
        self.tier = tier
        self.prefix = prefix
        self.levels = levels
        self.divided: dict[torch.nn.Parameter, Divided] = {}
        self.was_on_meta = is_on_meta(model)
        config = rabit.default_engine().config
        self._joins = config.joins  # The others have theirs, and this rank gets its parts from a commit.
        units: list[Unit] = []
        self.gathers = Gathers(units, window, source)
        is_first = levels.everyone.rank() == 0
        given: list[torch.Tensor] = []
        for plan in plans:  # One unit is whole at a time.
            if self.was_on_meta:
                given += give_values(owners_of(model, plan.parameters.values()), is_first)
            units.append(self._unit(plan))
        if self.was_on_meta:
            given += give_values(model.modules(), is_first)
        if self.was_on_meta and not config.joins:
            share_values((tensor for tensor in given if tensor not in self.divided), levels.everyone, prefix)
        self.gathers.source.begin(self.storages, prefix)
        if tier is not None:
            rabit.default_engine().before_close(tier.close)
        self._saved = _SavedTensors(self.gathers)
        self._hook(model, list(zip(plans, units, strict=True)))
        if config.min_np:
            follow_default_engine(self._start_over)

    def _start_over(self) -> None:
        """The ranks of an elastic job have changed."""
        self.prefix = rabit.default_engine().next_name("divided")
        self._saved.forget()
        self.gathers.start_over()
        for storage in self.storages:
            storage.divide_again(self.prefix)
        self.layout = self.storages[0].layout

    def _unit(self, plan: UnitPlan) -> Unit:
        """The unit of a plan, whose parameters are in parts from here on."""
        flats = [flat for flat in self.layout.flats if flat.entries[0].unit == plan.name]
        storages = []
        for flat in flats:
            parameters = [plan.parameters[entry.name] for entry in flat.entries]
            arguments = self.layout, flat, parameters, self.levels, self.prefix, self._joins
            storages.append(PartStorage(*arguments) if self.tier is None else DiskStorage(self.tier, *arguments))
        unit = Unit(plan.name, storages, self.gathers.source)
        for storage in storages:
            for place, entry in enumerate(storage.flat.entries):
                parameter = plan.parameters[entry.name]
                divided = Divided(entry.name, parameter, self.gathers, unit, storage, place)
                self.divided[parameter] = divided
                divide(parameter, divided)
        return unit

    @property
    def storages(self) -> list[PartStorage]:
        return [storage for unit in self.gathers.units for storage in unit.storages]

    def _hook(self, model: torch.nn.Module, units: list[tuple[UnitPlan, Unit]]) -> None:
        gathers, saved = self.gathers, self._saved
        model.register_forward_pre_hook(lambda *_: saved.begin(), prepend=True)
        model.register_forward_hook(lambda *_: saved.end(), always_call=True)
        for plan, unit in units:
            if not plan.is_whole:
                continue  # It is read in between what its children read.
            plan.module.register_forward_pre_hook(_calling(gathers.enter, unit))
            plan.module.register_forward_hook(_calling(gathers.leave, unit), always_call=True)
        for module in cast("Iterator[Any]", model.modules()):
            if any(parameter in self.divided for parameter in module.parameters(recurse=False)):
                module._register_state_dict_hook(_parts_into)
                module._register_load_state_dict_pre_hook(_parts_from, with_module=True)


class _SavedTensors:
    """Keeps the place of a parameter's values in place of the values, between forward and backward pass."""

    def __init__(self, gathers: Gathers) -> None:
        self._gathers = gathers
        self._entered: list[Any] = []

    def begin(self) -> None:
        self._gathers.begin_pass()
        # Inside of others' hooks, which a recomputed pass runs in, values are kept as they are.
        is_free = torch._C._autograd._top_saved_tensors_default_hooks(True) is None
        hooks: Any = torch.autograd.graph.saved_tensors_hooks(self._pack, _unpack)
        context = hooks if is_free else contextlib.nullcontext()
        context.__enter__()
        self._entered.append(context)

    def end(self) -> None:
        self._entered.pop().__exit__(None, None, None)
        self._gathers.end_pass()

    def forget(self) -> None:
        """The passes that run have failed."""
        while self._entered:
            self._entered.pop().__exit__(None, None, None)

    def _pack(self, tensor: torch.Tensor) -> Any:
        for unit in self._gathers.units:
            if unit.is_read and (offset := unit.offset_of(tensor)) is not None:
                return _Place(self._gathers, unit, tensor, offset)
        return tensor, tensor._version


class _Place:
    """Of a saved tensor in the memory of a unit."""

    def __init__(self, gathers: Gathers, unit: Unit, tensor: torch.Tensor, offset: int) -> None:
        self._gathers = gathers
        self._unit = unit
        self._version = unit.version
        self._what = tensor.dtype, tensor.size(), tensor.stride(), offset

    def tensor(self) -> torch.Tensor:
        if self._unit.version != self._version:
            raise InvalidArgument(
                f"backward on rank {rabit.rank()}: the parameters of {self._unit.name!r} have been changed, as by "
                "step(), since the forward pass that computed this loss. Run the forward pass again"
            )
        self._gathers.read(self._unit)
        return self._unit.tensor(*self._what)


def _unpack(saved: Any) -> torch.Tensor:
    if isinstance(saved, _Place):
        return saved.tensor()
    tensor, version = saved
    if tensor._version != version:
        raise RuntimeError(
            f"a tensor of shape {tuple(tensor.shape)} that the backward pass needs was modified by an inplace "
            "operation after it was saved. Change a copy of it"
        )
    kept: torch.Tensor = tensor
    return kept


def _calling(function: Callable[[Unit], None], unit: Unit) -> Callable[..., None]:
    return lambda *_: function(unit)


def _entries(plans: list[UnitPlan]) -> Iterator[Entry]:
    for plan in plans:
        for name, parameter in plan.parameters.items():
            dtype = str(parameter.dtype).removeprefix("torch.")
            yield Entry(
                name, tuple(parameter.shape), dtype, plan.name, is_trained=parameter.requires_grad
            )


# --- state_dict and load_state_dict ---------------------------------------------------------------


def _parts_into(module: torch.nn.Module, state: dict[str, Any], prefix: str, _: Any) -> None:
    """Puts this rank's parts into a state_dict, for the values that are not whole."""
    for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
        key = f"{prefix}{name}"
        if isinstance(state.get(key), DividedValues) and isinstance(parameter, DividedParameter):
            divided = parameter.rabit_divided
            state[key] = divided.part()


def _parts_from(module: torch.nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Takes parts from a state_dict that is loaded. Blocks until every rank loads it."""
    is_first = True
    for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
        key = f"{prefix}{name}"
        value = state.get(key)
        if is_first and isinstance(parameter, DividedParameter):
            is_first = False
            parameter.rabit_divided.gathers.source.meet()
        if isinstance(value, Part) and isinstance(parameter, DividedParameter):
            divided = parameter.rabit_divided
            label = f"{divided.storage.prefix}.join.{divided.name}"
            where = divided.storage.levels.everyone
            elements = joined(WAITED, label, divided.name, value, where)
            divided.write(elements.as_strided(parameter.shape, parameter.stride()))
            state[key] = without_values(parameter, divided.name)


# --- whole values ---------------------------------------------------------------------------------


def divided_model(model: torch.nn.Module) -> DividedModel | None:
    """What `shard` has made of a model; None if it has not."""
    return _models.get(model)


def whole(parameter: torch.Tensor) -> torch.Tensor:
    """A copy of all values of a parameter. Blocks until every rank of its process set calls it, unless it is pulled."""
    if not isinstance(parameter, DividedParameter):
        return parameter.detach().clone()
    divided = parameter.rabit_divided
    with _held(divided.gathers, [divided.unit], is_written=False):
        return divided.view().clone()


@contextlib.contextmanager
def gathered(model: torch.nn.Module, *, write: bool = False) -> Iterator[torch.nn.Module]:
    """A context in which all parameters of a divided model, or of a module of it, are whole on every rank.

    Blocks until every rank enters it; with gather="pull" only for `write`. write: the parameters may be changed in
    place, under torch.no_grad() and on all ranks alike; each rank keeps its part of the changed values. The memory is
    that of the whole module.
    """
    divided = [
        parameter.rabit_divided for parameter in model.parameters() if isinstance(parameter, DividedParameter)
    ]
    if not divided:
        yield model
        return
    gathers = divided[0].gathers
    wanted = {id(each.unit) for each in divided}
    with _held(gathers, [unit for unit in gathers.units if id(unit) in wanted], write):
        for each in divided:
            each.is_writable = write
        try:
            yield model
        finally:
            for each in divided:
                each.is_writable = False


@contextlib.contextmanager
def _held(gathers: Gathers, units: list[Unit], is_written: bool) -> Iterator[None]:
    gathers.hold(units, is_written)
    try:
        yield
    finally:
        gathers.give_back(units, is_written)
