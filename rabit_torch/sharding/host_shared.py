"""Parameters that the ranks of a host have once, in memory that they share: each rank writes the rows that it owns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

import rabit
from rabit import InvalidArgument, ProcessSet
from rabit.sharding import FlatLayout, HostMemory
from rabit_torch.ops.collectives import alltoall_async, broadcast_async_
from rabit_torch.sharding.flats import FlatStorage, Storage
from rabit_torch.sharding.guarded import is_in_place
from rabit_torch.sharding.meta import leave_meta, share_values
from rabit_torch.tensors import METADATA_AND_GRADIENT, found_in

__all__ = ["SharedParameter", "SharedStorage", "fill_meta", "host_memory", "share_flats"]

_tensor: Any = torch.Tensor
# With the same operands on every rank, any number of ranks may write them.
_MAY_BE_REPEATED = {
    _tensor.copy_,
    _tensor.fill_,
    _tensor.zero_,
    _tensor.requires_grad_,
    _tensor.requires_grad.__set__,
}


def host_memory(layout: FlatLayout, process_set: ProcessSet, prefix: str) -> HostMemory:
    """For the flats of `layout`. Blocks until every rank calls it."""
    sizes = (
        flat.rows * layout.block * getattr(torch, flat.dtype).itemsize for flat in layout.flats
    )
    return HostMemory(sum(map(HostMemory.padded, sizes)), process_set, f"{prefix}.host")


def fill_meta(
    names: Mapping[torch.Tensor, str],
    trained: Mapping[torch.Tensor, str],
    model: torch.nn.Module | None,
    process_set: ProcessSet,
    prefix: str,
) -> None:
    """Gives what `model` has on the meta device, but for `trained` parameters, memory and the first rank's values.

    names: of parameters. Every rank passes `model` if one does. Blocks until every rank calls it. Raises
    InvalidArgument on every rank if one has parameters that cannot be in memory of the CPU, is the first with some on
    the meta device, or has not in its `model` what another has on the meta device.
    """
    rest: dict[str, torch.Tensor] = {}
    if isinstance(model, torch.nn.Module):
        found = [*model.named_parameters(), *model.named_buffers()]
        rest = {name: tensor for name, tensor in found if tensor not in trained}
    meta = [name for name, tensor in rest.items() if tensor.is_meta]
    where = {name: tensor.device.type for tensor, name in names.items() if tensor.is_meta or tensor in trained}
    refusal = _refusal_of_devices({**where, **dict.fromkeys(meta, "meta")}, process_set.rank() == 0, model is None)
    if model is not None and not isinstance(model, torch.nn.Module):
        refusal = f"host_shared: model on rank {rabit.rank()} is {type(model).__name__}; expected a torch.nn.Module"
    shapes = None if model is None else {name: tuple(tensor.shape) for name, tensor in rest.items()}
    told = rabit.allgather_object((rabit.rank(), refusal, meta, shapes), f"{prefix}.meta", process_set)
    for text in filter(None, (text for _, text, _, _ in told)):
        raise InvalidArgument(text)
    wanted = {name: (rank, others[name]) for rank, _, names, others in told for name in names}
    for name, (meta_rank, shape) in wanted.items():
        for rank, _, _, others in told:
            passed = "no model" if others is None else others.get(name, "no such buffer or frozen parameter")
            if passed != shape:
                raise InvalidArgument(
                    f"host_shared: {name!r} of shape {shape} on rank {meta_rank} is on meta and gets the values of the "
                    f"first rank, and rank {rank} passes {passed}. Build the same model on every rank, and pass model= "
                    "on every rank"
                )
    for name in sorted(wanted):
        if rest[name].is_meta:
            leave_meta(rest[name], torch.empty_like(rest[name], device="cpu"))
    share_values((rest[name] for name in sorted(wanted)), process_set, prefix)


def _refusal_of_devices(where: Mapping[str, str], is_first: bool, lacks_model: bool) -> str:
    """Why tensors on these devices cannot be shared; empty: they can."""
    for name, device in where.items():
        what = f"host_shared: {name!r} on rank {rabit.rank()} is on {device}"
        if device not in ("cpu", "meta"):
            return f"{what}; ranks of a host share memory of the CPU. Move the model there, or leave host_shared out"
        if device == "meta" and is_first:
            return f"{what}, and all ranks get the values of this one, the first. Build the model on the CPU here"
        if device == "meta" and lacks_model:
            return f"{what}, where buffers of the model may be, too. Pass model=, so that they get values"
    return ""


def share_flats(memory: HostMemory, storages: Iterable[Storage]) -> None:
    """Gives all hosts the values of the first rank of all. Blocks until every rank calls it."""
    memory.begin_write()  # The first rank of each host has filled its memory.
    shared = [storage for storage in dict.fromkeys(storages) if isinstance(storage, SharedStorage)]
    for storage in shared:
        storage.share()
    memory.begin_write()


class SharedStorage(FlatStorage):
    """A flat whose values every host has once."""

    def __init__(self, memory: HostMemory, *arguments: Any) -> None:
        self.memory = memory
        super().__init__(*arguments)
        self.device = self._values.device  # The parameters may have been on the meta device.

    def share(self) -> None:
        """Copies the values of the first rank to the other hosts. Blocks until every rank calls it."""
        everyone = self.levels.everyone
        if len(self.memory.hosts) > 1 or self.levels.copies is not None:
            root = everyone.ranks[0] if everyone.ranks else 0
            # Ranks of a host receive the same bytes in the same place.
            broadcast_async_(self._values, root, f"{self._name}.start", everyone).wait()

    def gather(self, crosses: bool) -> None:
        """Starts to collect the rows of other hosts; those of this one are in place."""
        if len(self.memory.hosts) == 1:
            return
        rank, own = self.memory.rank, self.own()
        targets = {self._counterpart(rank, host) for host in range(len(self.memory.hosts))} - {rank}
        splits = [self._rows.length if peer in targets else 0 for peer in range(self.layout.parts)]
        handle = alltoall_async(
            own.repeat(len(targets), 1), splits, name=f"{self._name}.hosts", process_set=self.levels.shards
        )
        self.memory.when_written(lambda: self._take_rows(handle))

    def finish(self) -> None:
        self.memory.finish()

    def _take_rows(self, handle: Any) -> None:
        found, counts = handle.wait()
        begin = 0
        for peer, count in enumerate(counts.tolist()):
            start, _ = self.rows_of(peer)
            self._values[start : start + count] = found[begin : begin + count]
            begin += count

    def _counterpart(self, rank: int, host: int) -> int:
        """The rank of `host` that gets the rows of `rank`; `rank` itself on its own host."""
        own = next(ranks for ranks in self.memory.hosts if rank in ranks)
        there = self.memory.hosts[host]
        return rank if rank in there else there[own.index(rank) % len(there)]

    def _allocated(self) -> torch.Tensor:
        memory = torch.from_numpy(self.memory.take(self.bytes))
        return memory.view(self._dtype).view(self._shape)

    def _take_values(self) -> None:
        for place, parameter in enumerate(self._parameters):
            view = self.view(self._values, place)
            if parameter.is_meta:
                leave_meta(parameter, view)
            else:
                if self.memory.is_first:
                    view.copy_(parameter.detach())
                parameter.data = view
            if type(parameter) is torch.nn.Parameter:
                changed: Any = parameter
                changed.__class__ = SharedParameter
                changed.rabit_shared = self, self.flat.entries[place].name


class SharedParameter(torch.nn.Parameter):
    """A parameter in memory of several ranks: reads wait for their updates, and what each would repeat is refused."""

    rabit_shared: tuple[SharedStorage, str]

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func not in METADATA_AND_GRADIENT:
            for parameter in found_in((args, kwargs), (cls,)):  # They may be of several optimizers.
                parameter.rabit_shared[0].finish()
            first = args[0] if args else None
            if type(first) is cls and is_in_place(func) and func not in _MAY_BE_REPEATED:
                raise InvalidArgument(_refusal(first, getattr(func, "__name__", str(func))))
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)

    def __deepcopy__(self, memo: Any) -> Any:
        """A parameter of this rank alone."""
        found = memo[id(self)] = self._copied()
        return found

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._copied().__reduce_ex__(protocol)  # type: ignore[no-untyped-call]

    def _copied(self) -> torch.nn.Parameter:
        return torch.nn.Parameter(self.detach().clone(), self.requires_grad)


def _refusal(parameter: SharedParameter, what: str) -> str:
    _, name = parameter.rabit_shared
    return (
        f"{name!r} is shared by the ranks of this host (host_shared), and each of them would apply {what} to it. "
        "Change it before DistributedOptimizer; or compute new values, call rabit.barrier(), and copy_ them into it "
        "on every rank"
    )

