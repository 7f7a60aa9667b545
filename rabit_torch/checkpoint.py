"""Checkpoint for torch: models, optimizers, schedulers and random numbers beside what the program adds.

The way of the bytes to disk and back is that of rabit.checkpoint.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

import rabit
from rabit import InvalidArgument, ProcessSet, Unsupported, global_process_set
from rabit.checkpoint import Bytes, Leaf, NumpyAdapter, Part, Restored, Stored
from rabit.checkpoint import Checkpoint as _Checkpoint
from rabit.framework import Change

__all__ = ["Checkpoint", "TorchAdapter"]

_NAMES = {
    torch.bool: "BOOL", torch.uint8: "U8", torch.int8: "I8", torch.int16: "I16", torch.int32: "I32",
    torch.int64: "I64", torch.float16: "F16", torch.bfloat16: "BF16", torch.float32: "F32",
    torch.float64: "F64", torch.complex64: "C64", torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2", torch.uint16: "U16", torch.uint32: "U32", torch.uint64: "U64",
}  # fmt: skip
_ROLES = ("model", "optimizer", "scheduler", "scaler", "sampler")
_REPLICA = "replica"  # the states of a rank whose parameters are its own
_TYPES = {name: dtype for dtype, name in _NAMES.items()}


class TorchAdapter:
    """Dense tensors of any device; they come back on the CPU."""

    name = "torch"

    def leaf(self, value: Any, path: str) -> Leaf | None:
        if not isinstance(value, torch.Tensor):
            return None
        if value.is_meta:
            raise Unsupported(
                f"the state has a tensor on device meta at '{path}', which has no elements to save. Load the "
                "model, or leave the tensor out."
            )
        if value.layout != torch.strided or hasattr(value, "to_local") or value.dtype not in _NAMES:
            raise Unsupported(
                f"the state has a {type(value).__name__} of {value.dtype} and layout {value.layout} at "
                f"'{path}', and a checkpoint takes dense tensors that each rank has whole. Pass a local "
                "part as rabit.checkpoint.Part, or save it with torch.distributed.checkpoint, which "
                "works over backend 'rabit'."
            )
        tensor = value.detach()

        def read(first: int, last: int) -> Bytes:
            flat = tensor.resolve_conj().resolve_neg().contiguous().view(-1)[first:last].cpu()
            found: Bytes = flat.view(torch.uint8).numpy()
            return found

        return Leaf(_NAMES[value.dtype], tuple(value.shape), self.name, read)

    def value(self, stored: Stored) -> Any:
        if stored.data.size == 0:
            return torch.empty(stored.shape, dtype=_TYPES[stored.dtype])
        return torch.from_numpy(stored.data).view(_TYPES[stored.dtype]).reshape(stored.shape)


class Checkpoint(_Checkpoint):
    """The checkpoints of a job that trains with torch.  One per job and folder.

    model, optimizer, scheduler, scaler: what has state_dict() and load_state_dict(), equal on all
    ranks, or a dictionary of such; an optimizer of rabit_torch brings the state of its strategy along.
    sampler: likewise, where each rank has a state of its own.
    folder: None: RABIT_CHECKPOINT, which `rabitrun --checkpoint` sets.
    keep: how many generations stay.  every: of how many steps one is due; see is_due().
    on_error, allow_pickle, process_set: as for rabit.checkpoint.Checkpoint.
    Random numbers of torch, NumPy and Python, and buffers of models, are saved for each rank; with a
    strategy that lets parameters differ between ranks (local SGD, DiLoCo), so is everything.
    """

    def __init__(
        self,
        folder: str | Path | None = None,
        keep: int = 3,
        *,
        model: Any = None,
        optimizer: Any = None,
        scheduler: Any = None,
        scaler: Any = None,
        sampler: Any = None,
        every: int = 100,
        on_error: Literal["raise", "warn"] = "raise",
        allow_pickle: bool = False,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        super().__init__(
            folder,
            keep,
            every=every,
            on_error=on_error,
            allow_pickle=allow_pickle,
            process_set=process_set,
            adapters=(TorchAdapter(), NumpyAdapter()),
        )
        self._size = process_set.size()
        self._set = process_set
        given = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler}
        self._objects = _flat(given)
        self._samplers = _flat({"sampler": sampler})

    def save(self, state: Any = None, *, step: int, local: Any = None) -> None:
        """Saves a generation in the background: the objects of this Checkpoint, and these values.

        state: more values, equal on all ranks; local: more that are this rank's own; as for
        rabit.checkpoint.Checkpoint.save.
        Copies what this rank writes and returns; waits first for a save that still runs.
        Raises as that does.
        """
        self._save(step, lambda: self._all_of(state, local))

    def _all_of(self, state: Any, local: Any) -> tuple[Any, Any]:
        """What is equal on all ranks, and what is this rank's own."""
        for each in self._objects.values():
            if hasattr(each, "flush"):
                each.flush()  # Updates that wait belong to the step that is saved.
        shared: dict[str, Any] = {}
        own: dict[str, Any] = {name: sampler.state_dict() for name, sampler in self._samplers.items()}
        for name, each in self._objects.items():
            method = _method_of(each)
            if method is not None:  # First, since what is under way comes in and moves parameters.
                saved = method.state_dict()
                own[f"{name} strategy"] = saved.pop("local")
                shared[f"{name} strategy"] = saved
        for name, each in self._objects.items():
            shared[name] = each.state_dict()
            if isinstance(each, torch.nn.Module):
                own[f"{name} buffers"] = _buffers(each)
        own["random"] = _random_state()
        if self._are_apart():
            own[_REPLICA] = {name: shared.pop(name) for name in self._objects}
        return {**shared, "state": state}, {**own, "local": local}

    def _are_apart(self) -> bool:
        """True if a strategy lets the parameters of the ranks differ: then each rank saves all of its own."""
        methods = [_method_of(each) for each in self._objects.values()]
        return any(method is not None and method.strategy.uses_step for method in methods)

    def restore(self) -> Restored | None:
        """Puts the newest generation that is whole into the objects; None if there is none yet.

        Blocks.  Returns what `save` was given besides the objects, as .state and .local.  For a rank
        that the saved job did not have: samplers and strategies start from what rank 0 saved, random
        numbers stay as they are, and .local is None.
        Raises as rabit.checkpoint.Checkpoint.restore does, also where an object does not take its state.
        """
        found = super().restore()
        if found is None:
            return None
        taken: list[Restored] = []
        self._together("restore its objects", lambda: taken.append(self._take(found)))
        return taken[0]

    def _take(self, found: Restored) -> Restored:
        is_new = found.local is None
        own = (found.local_of(0) if is_new else found.local) or {}
        states = {**found.state, **own.get(_REPLICA, {})}
        _check_names(states, {**self._objects, **self._samplers}, own)
        for name, each in self._objects.items():
            is_model = isinstance(each, torch.nn.Module)
            state = _with_whole(each, name, states[name], self._set) if is_model else states[name]
            each.load_state_dict(state)
            if is_model and not is_new:
                each.load_state_dict(own[f"{name} buffers"], strict=False)
            method = _method_of(each)
            if method is not None and f"{name} strategy" in found.state:
                saved = {**found.state[f"{name} strategy"], "local": own[f"{name} strategy"]}
                has_new = self._size > found.size
                method.load_state_dict(saved, Change(found.size, self._size, is_new, has_new))
        for name, sampler in self._samplers.items():
            sampler.load_state_dict(own[name])
        if not is_new:
            _set_random_state(own["random"])
        return Restored(
            found.step, found.state["state"], None if is_new else own["local"], found.generation,
            found.size, found.skipped, lambda rank: found.local_of(rank)["local"],
        )  # fmt: skip


def _with_whole(
    model: torch.nn.Module, name: str, state: Mapping[str, Any], process_set: ProcessSet
) -> Mapping[str, Any]:
    """The state of a model; what was saved in parts (shard="parameters") is whole where the model has it whole."""
    own = dict(model.named_parameters(remove_duplicate=False))
    found = dict(state)
    for key, value in state.items():
        parameter = own.get(key)
        if isinstance(value, Part) and parameter is not None and not hasattr(parameter, "rabit_divided"):
            from rabit.sharding import joined

            size = value.value.element_size()
            # NumPy does not have all types of torch.
            data = value.value.contiguous().view(torch.uint8).numpy()
            part = Part(data, value.start * size, value.length * size)
            label = f"rabit.checkpoint.whole.{name}.{key}"
            elements = joined(None, label, repr(key), part, process_set)
            strides = torch.empty_like(parameter, device="meta").stride()
            flat = torch.from_numpy(elements).view(value.value.dtype)
            found[key] = flat.as_strided(parameter.shape, strides)
    return found


def _flat(given: Mapping[str, Any]) -> dict[str, Any]:
    """The objects by name; those of a dictionary as "model/generator"."""
    found = {}
    for name, each in given.items():
        if each is None:
            continue
        many = {f"{name}/{key}": value for key, value in each.items()} if type(each) is dict else {}
        for key, value in (many or {name: each}).items():
            if not hasattr(value, "state_dict") or not hasattr(value, "load_state_dict"):
                raise InvalidArgument(
                    f"Checkpoint({name}=...): '{key}' is {type(value).__name__}, which has no "
                    "state_dict() and load_state_dict(). Pass its values to save() and take them from "
                    "what restore() returns."
                )
            found[key] = value
    return found


def _check_names(
    states: Mapping[str, Any], objects: Mapping[str, Any], own: Mapping[str, Any]
) -> None:
    known = [name for name in {**states, **own} if name.partition("/")[0] in _ROLES]
    missing = [name for name in objects if name not in known]
    if missing:
        raise InvalidArgument(
            f"checkpoint on rank {rabit.rank()}: the saved one has no {', '.join(missing)}, only "
            f"{', '.join(known) or 'other values'}. Make the Checkpoint with the objects that were saved."
        )


def _method_of(value: Any) -> Any:
    """The gradient method behind an optimizer; None if there is none."""
    reducer = getattr(value, "_rabit_reducer", None)
    return getattr(reducer, "method", None)


def _buffers(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """They differ between ranks, such as the running mean of a BatchNorm; those that are saved."""
    saved = model.state_dict()
    return {name: saved[name] for name, _ in model.named_buffers() if name in saved}


def _random_state() -> dict[str, Any]:
    version, words, gauss = random.getstate()
    state: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "numpy": np.random.get_state(),
        "python": (version, np.array(words, np.uint32), gauss),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def _set_random_state(state: Mapping[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    np.random.set_state(state["numpy"])
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words.tolist()), gauss))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
