"""ShardedOptimizer: an optimizer of torch that updates this rank's part of every parameter.

Source: Rajbhandari et al., ZeRO: Memory Optimizations Toward Training Trillion Parameter Models (2020).
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np
import torch

import rabit
from rabit import InvalidArgument, ProcessSet
from rabit.framework import follow_default_engine
from rabit.sharding import DiskTier, Entry, FlatLayout, HostMemory, Levels, SquareSum, levels_of
from rabit_torch.sharding.copied import CopiedPart, HostStates, copies_of
from rabit_torch.sharding.delayed import DelayedStates, check_delay
from rabit_torch.sharding.divided import DividedGradient, divided_gradient
from rabit_torch.sharding.flats import Backlog, FlatStorage, Storage
from rabit_torch.sharding.gathers import Gathers
from rabit_torch.sharding.host_shared import SharedStorage, fill_meta, host_memory, share_flats
from rabit_torch.sharding.kept_state import KeptState, divide_again
from rabit_torch.sharding.model import DividedModel, check_layouts, divided_model, shard
from rabit_torch.sharding.offload import OffloadedStates
from rabit_torch.sharding.parts_on_disk import made_tier
from rabit_torch.sharding.probe import check_elementwise
from rabit_torch.sharding.relay import Relay
from rabit_torch.sharding.slots import give_back_pages, return_large_blocks
from rabit_torch.sharding.state import DividedState
from rabit_torch.sharding.states import MemoryStates, Place, States

__all__ = ["ShardedOptimizer", "shard_optimizer"]

# Bytes of parameters that travel together. A flat leaves as soon as its last gradient has arrived: larger ones
# leave later, smaller ones cost more exchanges.
_FLAT_BYTES = 4 << 20
_STAGES = ("optimizer", "gradients", "parameters")


class ShardedOptimizer(KeptState):
    """What DistributedOptimizer(..., shard=...) adds to the wrapped optimizer, whose groups hold slices.

    After `backward()` a parameter's `.grad` is a DividedGradient until the next `zero_grad()`.
    """

    _rabit_relay: Relay | None
    _rabit_gathers: Gathers | None  # of a model whose parameters are divided
    _rabit_host: HostMemory | None  # of parameters that the ranks of a host share
    _rabit_states: States
    _rabit_copies: dict[CopiedPart, Storage]  # on the host, of parameters on a device
    _rabit_frozen: list[tuple[str, torch.Tensor]]
    _rabit_passes: int
    _rabit_is_scattered: bool
    _rabit_crosses: bool  # parameters are gathered in the next forward pass
    _rabit_is_synchronized: bool
    _rabit_adopts_order: bool
    _rabit_has_scaler: bool  # of rabit_torch.sharding

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates this rank's slices with the averaged gradients, and gathers the parameters.

        Blocks until every rank has stepped. closure: as torch's optimizers take it. Raises what the engine
        reports (PeerLost, Mismatch), InvalidArgument for a parameter that was thawed after wrapping; with delay_after
        also, on every rank, if the last update of one has failed, or would undo what that rank has written.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self._rabit_is_synchronized and self._rabit_states.is_late:  # What was written since then, too.
            self._rabit_check_late()
        self.synchronize()
        self._rabit_write(self._rabit_states.step)
        divided = self._rabit_gathers
        if divided is not None:
            divided.end_step(self._rabit_adopts_order)
        self._rabit_forget()
        if not self._rabit_crosses:
            self.flush()
        engine = rabit.default_engine()
        engine.end_step(self._rabit_levels.everyone.size() == engine.size)
        return loss

    def apply_late(self) -> None:
        """Gives the parameters the update that is late (delay_after); the next one begins from what they have then.

        Without a delay it does nothing. Blocks until every rank calls it. Raises InvalidArgument on every rank if the
        update of one has failed, or one has written into the parameters since the last step.
        """
        self.flush()
        if self._rabit_states.is_late:
            self._rabit_check_late()
            self._rabit_write(self._rabit_states.publish)
            self.flush()

    def _rabit_check_late(self) -> None:
        """Raises InvalidArgument on every rank if one refuses its late update. Collective."""
        own = self._rabit_states.refusal()
        text, name = "" if own is None else str(own), f"{self._rabit_prefix}.late"
        for refusal in filter(None, rabit.allgather_object(text, name, self._rabit_levels.everyone)):
            raise own or InvalidArgument(refusal)

    def _rabit_write(self, update: Callable[[], None]) -> None:
        """`update` writes into this rank's part of the parameters, which the others gather then."""
        divided, host = self._rabit_gathers, self._rabit_host
        if host is not None:
            host.begin_write()
        writing = contextlib.nullcontext() if divided is None else divided.writing(divided.units)
        with writing, torch.no_grad():
            update()
        # The backward pass reaches last what the forward pass reads first.
        whole = [storage for storage in reversed(self._rabit_storages) if isinstance(storage, FlatStorage)]
        for storage in whole:
            storage.gather(self._rabit_crosses)
        if host is not None:
            host.end_write()

    def synchronize(self) -> None:
        """Blocks until `part(p).grad` is this rank's slice of the averaged gradient of each parameter p.

        It is None where no rank has used the parameter. `step()` calls it, and it raises what that does.
        """
        if self._rabit_is_synchronized:
            return
        self.flush()
        for name, parameter in self._rabit_frozen:
            if parameter.requires_grad:
                raise InvalidArgument(
                    f"shard: {name!r} on rank {rabit.rank()} was frozen when the optimizer was wrapped and is trained "
                    "now. Wrap a new optimizer after thawing"
                )
        used = self._rabit_used_anywhere()
        for storage in self._rabit_storages:
            storage.send_rest()
        if self._rabit_relay is not None:
            self._rabit_relay.finish(self._rabit_storages)
        for storage in self._rabit_storages:
            storage.wait()
        for copy, storage in self._rabit_copies.items():
            assert storage.part is not None
            copy.take_gradient(storage.part)
        for place, is_used in zip(self._rabit_places, used, strict=True):
            parameter = place.parameter
            parameter.grad = divided_gradient(parameter, place.name) if is_used else None
            place.set_gradient(is_used)
        self._rabit_is_synchronized = True

    def clip_grad_norm_(self, max_norm: float) -> torch.Tensor:
        """Scales the averaged gradients so that their 2-norm is at most `max_norm`; returns the norm before.

        The norm has the same bits for every number of ranks. Blocks until every rank has called it. A norm of
        nan, where a gradient is not finite, makes every gradient nan, as torch's function does.
        """
        self.synchronize()
        squares = SquareSum()
        gradients = [
            place.slice.grad
            for place in self._rabit_places
            if place.slice.grad is not None
        ]
        for gradient in gradients:
            squares.add(gradient.detach().float().cpu().numpy())
        norm = squares.norm(
            lambda digits: rabit.allreduce(
                digits, name=f"{self._rabit_prefix}.norm", op=rabit.Sum, process_set=self._rabit_levels.shards
            )
        )
        factor = max_norm / (norm + 1e-6)
        if not factor > 1.0:
            for gradient in gradients:
                gradient.mul_(factor)
        return torch.tensor(norm)

    def _rabit_start_over(self) -> None:
        """The ranks of an elastic job have changed."""
        self._rabit_prefix = rabit.default_engine().next_name("sharded")
        divide_again(self._rabit_inner, self._rabit_places, self._rabit_prefix)
        self._rabit_is_synchronized = False
        rabit.default_engine().before_close(self._rabit_close)

    def _rabit_close(self) -> None:
        self.flush()
        self._rabit_states.close()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears the gradients, as torch's optimizers do."""
        for place in self._rabit_places:
            gradient = place.parameter.grad
            if set_to_none or gradient is None or isinstance(gradient, DividedGradient):
                place.parameter.grad = None
            else:
                gradient.zero_()
        self._rabit_forget()

    def part(self, parameter: torch.Tensor) -> torch.nn.Parameter | None:
        """This rank's slice of a parameter, 1-D, with its `.grad`; None if this rank owns nothing of it."""
        for place in self._rabit_places:
            if place.parameter is parameter:
                return place.slice if place.slice.numel() else None
        raise InvalidArgument("part: the tensor is not a trained parameter of this optimizer")

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """What a GradScaler's step() asks: False, for it has to unscale this rank's gradients itself."""
        if not self._rabit_has_scaler:
            raise InvalidArgument(
                "shard: torch.amp.GradScaler sees this rank's part of the gradients, and ranks would not leave out the "
                "same steps. Use rabit_torch.sharding.GradScaler"
            )
        return False

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self._rabit_inner.param_groups

    @property
    def state(self) -> Any:
        return self._rabit_inner.state

    @property
    def defaults(self) -> dict[str, Any]:
        return self._rabit_inner.defaults

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Raises InvalidArgument: the layout of a sharded optimizer is fixed."""
        raise InvalidArgument(
            "shard: groups cannot be added after wrapping. Add them to the optimizer before"
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_rabit_"):
            raise AttributeError(name)
        return getattr(self._rabit_inner, name)

    def __repr__(self) -> str:
        return f"Sharded{self._rabit_inner!r}"

    def __reduce__(self) -> Any:
        raise InvalidArgument(
            "a sharded optimizer holds hooks and handles of this process and cannot be copied or pickled; "
            "save optimizer.state_dict() instead"
        )

    def _rabit_take(self, place: Place) -> None:
        """A gradient has been added to `.grad` of a parameter."""
        if place.storage.has(place.place) or (
            not self._rabit_is_scattered and place.passes >= self._rabit_passes
        ):
            raise InvalidArgument(
                f"shard: {place.name!r} on rank {rabit.rank()} has a gradient from more than {self._rabit_passes} "
                "backward passes since the last step. Call step(), or set backward_passes_per_step"
            )
        place.is_used = True
        place.passes += 1
        # Stage 1 adds up on this rank; stage 2 keeps no whole gradient after a pass.
        if self._rabit_is_scattered or place.passes == self._rabit_passes:
            place.storage.take(place.place)
            place.parameter.grad = None

    def _rabit_used_anywhere(self) -> list[bool]:
        """Whether any rank has used each parameter since the last step."""
        for place in self._rabit_places:
            # Fewer passes than announced, as at the end of an epoch.
            if not self._rabit_is_scattered and 0 < place.passes < self._rabit_passes:
                place.storage.take(place.place)
                place.parameter.grad = None
        gathers = self._rabit_gathers
        flags = [place.is_used for place in self._rabit_places]
        flags += [gathers is not None and gathers.wants_order, self._rabit_states.refusal() is not None]
        name = f"{self._rabit_prefix}.used"
        found = rabit.allreduce(
            np.array(flags, np.uint8), name=name, op=rabit.Max, process_set=self._rabit_levels.everyone
        )
        *used, self._rabit_adopts_order, is_refused = (bool(flag) for flag in found)
        if is_refused:
            self._rabit_check_late()
        return used

    def _rabit_forget(self) -> None:
        for storage in self._rabit_storages:
            storage.forget()
        for place in self._rabit_places:
            place.is_used, place.passes = False, 0
            place.slice.grad = None
            if isinstance(place.parameter.grad, DividedGradient):
                place.parameter.grad = None
        self._rabit_is_synchronized = False


def shard_optimizer(
    optimizer: torch.optim.Optimizer,
    names: Mapping[torch.Tensor, str],
    stage: str,
    passes: int,
    process_set: ProcessSet,
    model: torch.nn.Module | None = None,
    crosses: bool = False,
    offload: str | None = None,
    within: Any = None,
    host_shared: bool = False,
    delay_after: int | None = None,
) -> Any:
    """What DistributedOptimizer returns for shard=... Blocks until every rank calls it."""
    _check_stage(stage, model, host_shared)
    check_delay(delay_after, stage, offload)
    return_large_blocks()
    state_bytes = check_elementwise(optimizer)
    trained, frozen = _parameters(optimizer, names)
    divided = None if model is None or host_shared else _divided(
        model, trained, process_set, within, state_bytes if offload in (None, "cpu") else "disk"
    )
    tier = _tier_of_state(offload, None if divided is None else divided.tier, process_set)
    levels = levels_of(process_set, within) if divided is None else divided.levels
    grouped = [[names[parameter] for parameter in group["params"]] for group in optimizer.param_groups]
    prefix = rabit.default_engine().next_name("sharded")
    is_scattered = stage != "optimizer"
    if host_shared:
        fill_meta(names, trained, model, levels.everyone, prefix)
    places, host = _places(
        optimizer, trained, divided, levels, prefix, passes, is_scattered, host_shared, offload is not None
    )
    _put_slices(optimizer, places)
    parts = list(places.values())
    storages = list({id(place.storage): place.storage for place in parts}.values())
    relay = None if levels.copies is None else Relay()
    for storage in storages:
        storage.relay = relay
    states = _states(optimizer, parts, tier, delay_after)
    _check_use(offload, stage, delay_after, parts)
    kind = type(optimizer)
    wrapped: Any = type(kind.__name__, (ShardedOptimizer, kind), {"__module__": kind.__module__})
    result = wrapped.__new__(wrapped)
    result.__dict__.update(
        _rabit_inner=optimizer,
        _rabit_places=parts,
        _rabit_states=states,
        _rabit_copies=copies_of(parts),
        _rabit_storages=storages,
        _rabit_gathers=None if divided is None else divided.gathers,
        _rabit_host=host,
        _rabit_state=DividedState(optimizer, states, parts, levels, prefix),
        _rabit_levels=levels,
        _rabit_relay=relay,
        _rabit_prefix=prefix,
        _rabit_frozen=frozen,
        _rabit_names=grouped,
        _rabit_passes=passes,
        _rabit_is_scattered=is_scattered,
        _rabit_crosses=crosses,
        _rabit_is_synchronized=False,
        _rabit_adopts_order=False,
        _rabit_has_scaler=False,
    )
    for place in parts:
        _watch(result, place)
    give_back_pages()
    rabit.default_engine().before_close(result._rabit_close)
    if rabit.default_engine().config.min_np:
        follow_default_engine(result._rabit_start_over)
    return result


def _check_use(offload: str | None, stage: str, delay_after: int | None, places: list[Place]) -> None:
    """Warns of an offload that changes nothing."""
    if offload == "cpu" and delay_after is None and not copies_of(places) and rabit.rank() == 0:
        warnings.warn(
            f"offload='cpu' with shard={stage!r} changes nothing: the parameters are on the CPU, and so is the "
            "optimizer's state. Move the model to a device before, or leave offload out",
            stacklevel=6,  # of DistributedOptimizer's caller
        )


def _states(
    optimizer: torch.optim.Optimizer, places: list[Place], tier: DiskTier | None, delay_after: int | None
) -> States:
    if delay_after is not None:
        states: States = DelayedStates(optimizer, places, partial(_states_now, tier), delay_after)
    else:
        states = _states_now(tier, optimizer, places)
    copies = copies_of(places)
    return HostStates(states, copies) if copies else states


def _states_now(tier: DiskTier | None, optimizer: torch.optim.Optimizer, places: Sequence[Place]) -> States:
    return MemoryStates(optimizer, places) if tier is None else OffloadedStates(optimizer, places, tier)


def _tier_of_state(
    offload: str | None, of_parameters: DiskTier | None, process_set: ProcessSet
) -> DiskTier | None:
    """Where the state lies; None: in memory."""
    if offload is None or (offload == "cpu" and of_parameters is None):
        return of_parameters
    if of_parameters is not None:
        raise InvalidArgument(
            f"offload is {offload!r}, and the model that sharding.shard(offload=...) has divided keeps the optimizer's "
            f"state in {of_parameters.folder}, with its parameters. Leave offload of the optimizer out"
        )
    return made_tier(offload, process_set)


def _check_stage(stage: str, model: torch.nn.Module | None, host_shared: bool) -> None:
    if stage not in _STAGES:
        expected = ", ".join(map(repr, _STAGES))
        raise InvalidArgument(f"shard is {stage!r}; expected one of {expected}")
    if stage == "parameters" and model is None:
        raise InvalidArgument(
            "shard='parameters' gathers the parameters of a module when it runs, and needs the model. Write "
            "DistributedOptimizer(optimizer, model.named_parameters(), shard='parameters', model=model); "
            "RABIT_SHARD alone can switch on 'optimizer' and 'gradients'"
        )
    if stage == "parameters" and host_shared:
        raise InvalidArgument(
            "host_shared has the parameters once per host, and with shard='parameters' each rank keeps only a part of "
            "them. Use shard='gradients' with host_shared, or leave host_shared out"
        )
    if stage != "parameters" and model is not None and not host_shared:
        raise InvalidArgument(
            "model= is for shard='parameters', and for host_shared where ranks have built the model on the meta "
            f"device; shard is {stage!r}. Leave model out"
        )


def _divided(
    model: torch.nn.Module,
    trained: Mapping[torch.Tensor, str],
    process_set: ProcessSet,
    within: Any,
    state_bytes: int | Literal["disk"],
) -> DividedModel:
    """The model in parts, whose trained parameters are those of the optimizer."""
    if not isinstance(model, torch.nn.Module):
        raise InvalidArgument(f"model is {type(model).__name__}; expected a torch.nn.Module")
    own = {each: name for name, each in model.named_parameters() if each.requires_grad}
    foreign = sorted(name for each, name in trained.items() if each not in own)
    left = sorted(name for each, name in own.items() if each not in trained)
    if foreign or left:
        what = (
            f"the optimizer has {', '.join(foreign[:3])}, which {type(model).__name__} does not have"
            if foreign
            else f"{', '.join(left[:3])} of {type(model).__name__} have gradients and are not in the optimizer"
        )
        raise InvalidArgument(
            f"shard='parameters': {what}. Give the optimizer all parameters of the model that are trained, and freeze "
            "the others"
        )
    if divided_model(model) is None:
        shard(model, process_set=process_set, within=within, state_bytes=state_bytes)
    found = divided_model(model)
    assert found is not None
    everyone, shards = found.levels.everyone.ranks, found.levels.shards.ranks
    wanted = process_set.ranks if within is None else levels_of(process_set, within).shards.ranks
    if wanted != (everyone if within is None else shards):
        raise InvalidArgument(
            f"shard='parameters': the model is divided among the ranks {shards}, and the optimizer among {wanted}. "
            "Give both the same process_set; shard_within of the optimizer may be left out"
        )
    found.gathers.has_steps = True
    return found


def _places(
    optimizer: torch.optim.Optimizer,
    trained: Mapping[torch.Tensor, str],
    divided: DividedModel | None,
    levels: Levels,
    prefix: str,
    passes: int,
    is_scattered: bool,
    host_shared: bool,
    is_offloaded: bool,
) -> tuple[dict[torch.Tensor, Place], HostMemory | None]:
    """Where each trained parameter lies, in the order of `trained`; and the memory of the host, if it is shared."""
    passes = passes if is_scattered else 1  # whose gradients are sent
    parts: dict[torch.Tensor, Any] = {}
    if divided is not None:
        parts.update((each, found) for each, found in divided.divided.items() if each in trained)
    rest = {each: name for each, name in trained.items() if each not in parts}
    layout = FlatLayout(_entries(optimizer, rest), levels.shards.size())
    if not rabit.default_engine().config.min_np:  # Else a rank may make its optimizer when others have theirs.
        check_layouts(layout, levels.everyone, prefix)
    by_name = {name: each for each, name in rest.items()}
    where: dict[torch.Tensor, tuple[Storage, int]] = {}
    host = host_memory(layout, levels.shards, prefix) if host_shared else None
    backlog = Backlog(waits=divided is None or divided.gathers.source.is_collective)
    for flat in layout.flats:
        parameters = [by_name[entry.name] for entry in flat.entries]
        arguments = layout, flat, parameters, levels, prefix, passes
        storage = FlatStorage(*arguments) if host is None else SharedStorage(host, *arguments)
        where.update((parameter, (storage, place)) for place, parameter in enumerate(parameters))
        storage.backlog = backlog if is_scattered else None
    if host is not None:
        share_flats(host, [storage for storage, _ in where.values()])
    for each, found in parts.items():
        found.storage.passes = passes
        found.storage.backlog = backlog
        where[each] = found.storage, found.place
    group_of = {
        each: number
        for number, group in enumerate(optimizer.param_groups)
        for each in group["params"]
    }
    on_device = [where[each][0] for each in where if not each.is_cpu] if is_offloaded else []
    copies = {storage: CopiedPart(storage) for storage in dict.fromkeys(on_device)}
    places = {}
    for each, name in trained.items():
        values = copies.get(where[each][0])
        places[each] = Place(each, name, group_of[each], *where[each], values)
    return places, host


def _watch(optimizer: Any, place: Place) -> None:
    hooked: Any = place.parameter
    hooked.register_post_accumulate_grad_hook(lambda _: optimizer._rabit_take(place))


def _parameters(
    optimizer: torch.optim.Optimizer, names: Mapping[torch.Tensor, str]
) -> tuple[dict[torch.Tensor, str], list[tuple[str, torch.Tensor]]]:
    trained: dict[torch.Tensor, str] = {}
    frozen: list[tuple[str, torch.Tensor]] = []
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            name = names[parameter]
            if parameter.requires_grad:
                trained[parameter] = name
            else:
                frozen.append((name, parameter))
    if not trained:
        raise InvalidArgument("shard: the optimizer has no parameter that requires a gradient")
    return trained, frozen


def _entries(
    optimizer: torch.optim.Optimizer, trained: Mapping[torch.Tensor, str]
) -> Iterable[Entry]:
    """Parameters in the order in which the backward pass reaches them, some megabytes to a flat."""
    entries: list[Entry] = []
    for number, group in enumerate(optimizer.param_groups):
        filled: dict[torch.dtype, tuple[int, int]] = {}
        for parameter in reversed(group["params"]):
            if parameter not in trained:
                continue
            unit, taken = filled.get(parameter.dtype, (0, 0))
            size = parameter.numel() * parameter.element_size()
            if taken and taken + size > _FLAT_BYTES:
                unit, taken = unit + 1, 0
            filled[parameter.dtype] = unit, taken + size
            dtype = str(parameter.dtype).removeprefix("torch.")
            entries.append(
                Entry(trained[parameter], tuple(parameter.shape), dtype, str(unit), number)
            )
    return entries


def _put_slices(
    optimizer: torch.optim.Optimizer, places: Mapping[torch.Tensor, Place]
) -> None:
    for group in optimizer.param_groups:
        group["params"] = [places[each].slice for each in group["params"] if each in places]
