"""Models that were built on the meta device get their values unit by unit, so that no rank ever has all of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from rabit import InvalidArgument, ProcessSet
from rabit_torch.ops.collectives import broadcast_async_
from rabit_torch.tensors import is_expanded

__all__ = ["device_of_values", "give_values", "is_on_meta", "leave_meta", "owners_of", "share_values"]


def is_on_meta(model: torch.nn.Module) -> bool:
    return any(tensor.is_meta for tensor in _tensors(model.modules()))


def device_of_values() -> torch.device:
    """Where such a model gets its values: torch's default device if that is one of CUDA, else the CPU."""
    default = torch.empty(0).device
    return default if default.type == "cuda" else torch.device("cpu")


def owners_of(model: torch.nn.Module, parameters: Iterable[torch.nn.Parameter]) -> list[torch.nn.Module]:
    """The modules that have one of `parameters` as their own."""
    wanted = {id(parameter) for parameter in parameters}
    return [
        module
        for module in model.modules()
        if any(id(parameter) in wanted for parameter in module.parameters(recurse=False))
    ]


def give_values(modules: Iterable[torch.nn.Module], is_first: bool) -> list[torch.Tensor]:
    """Replaces tensors of `modules` that are on the meta device by tensors with memory; returns these.

    is_first: their values are those of reset_parameters(); any otherwise. Parameters stay the objects that they are.
    Raises InvalidArgument for a module that has no reset_parameters.
    """
    given: list[torch.Tensor] = []
    device = device_of_values()
    for module in modules:
        own = [tensor for tensor in _tensors([module]) if tensor.is_meta]
        if not own:
            continue
        reset = getattr(module, "reset_parameters", getattr(module, "_reset_parameters", None))
        if reset is None:
            raise InvalidArgument(
                f"shard: the model is on the meta device, and {type(module).__name__} has no reset_parameters() that "
                "gives its tensors values. Add one, or build the model on the CPU"
            )
        for parameter in module.parameters(recurse=False):
            if parameter.is_meta:
                leave_meta(parameter, torch.empty_like(parameter, device=device))
                given.append(parameter)
        for name, buffer in module.named_buffers(recurse=False):
            if buffer.is_meta:
                kept = torch.zeros_like(buffer, device=device)
                module._buffers[name] = kept
                given.append(kept)
        if is_first:
            reset()
    return given


def leave_meta(tensor: torch.Tensor, values: torch.Tensor) -> None:
    """Moves a parameter or a buffer from the meta device to the memory of `values`.

    It stays the object that it is, of its class, with its attributes and its hooks.
    """
    is_parameter = isinstance(tensor, torch.nn.Parameter)
    made: Any = torch.nn.Parameter(values, requires_grad=tensor.requires_grad) if is_parameter else values
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        made.__class__ = type(tensor)
    made.__dict__.update(tensor.__dict__)
    if tensor._backward_hooks:
        made._backward_hooks = tensor._backward_hooks
    if tensor._post_accumulate_grad_hooks:
        made._post_accumulate_grad_hooks = tensor._post_accumulate_grad_hooks
    torch.utils.swap_tensors(tensor, made)  # type: ignore[no-untyped-call]


def share_values(tensors: Iterable[torch.Tensor], process_set: ProcessSet, prefix: str) -> None:
    """Gives every rank the values of the first; one that is expanded gets memory for all of its elements.

    Blocks until every rank calls it.
    """
    if process_set.size() == 1:
        return
    handles = []
    for place, tensor in enumerate(tensors):
        values = tensor.detach()
        if is_expanded(values):
            tensor.data = values = values.contiguous()
        handles.append(broadcast_async_(values, process_set.ranks[0], f"{prefix}.first.{place}", process_set))
    for handle in handles:
        handle.wait()


def _tensors(modules: Iterable[torch.nn.Module]) -> Iterator[torch.Tensor]:
    for module in modules:
        yield from module.parameters(recurse=False)
        yield from module.buffers(recurse=False)
