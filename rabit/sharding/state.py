"""Training of NumPy arrays whose optimizer state is divided among the ranks (ZeRO stage 1).

Source: Rajbhandari et al., ZeRO: Memory Optimizations Toward Training Trillion Parameter Models (2020).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rabit.checkpoint import Part
from rabit.engine.current import current_engine
from rabit.engine.engine import Engine
from rabit.engine.handle import Handle
from rabit.engine.process_set import ProcessSet, global_process_set
from rabit.errors import InvalidArgument, Mismatch
from rabit.ops.collectives import allgather, allgather_async, allreduce, reducescatter_async
from rabit.sharding.layout import BLOCK, Entry, Flat, FlatLayout, Interval
from rabit.sharding.norm import SquareSum
from rabit.sharding.parts import joined
from rabit.sharding.updates import Update
from rabit.types import Sum

__all__ = ["ShardedState"]

Array = np.ndarray[Any, Any]


class ShardedState:
    """Parameters that every rank has, and an optimizer's state of which each rank has its part.

    values: name -> floating-point array, the same names, shapes, types and values on every rank. The arrays are
    copied; `parameters` has the copies. update: see rabit.sharding.updates; called once for each tensor that this
    rank owns a slice of, with 1-D slices. name: of its exchanges, when a program has several.
    Blocks until every rank has made one. Raises Mismatch if the layouts of the ranks differ.
    """

    def __init__(
        self,
        values: Mapping[str, Array],
        update: Update,
        *,
        name: str = "sharded",
        block: int = BLOCK,
        process_set: ProcessSet = global_process_set,
        engine: Engine | None = None,
    ) -> None:
        self._engine = engine or current_engine()
        self._set = process_set
        self._name = name
        self._update = update
        is_global = process_set is global_process_set
        members = list(range(self._engine.size)) if is_global else process_set.ranks
        self._rank = members.index(self._engine.rank)
        entries = [Entry(key, value.shape, str(value.dtype)) for key, value in values.items()]
        self.layout = FlatLayout(entries, len(members), block)
        self._check_layouts()
        self._rows = {
            flat.name: np.zeros((flat.rows, block), flat.dtype) for flat in self.layout.flats
        }
        self.parameters: dict[str, Array] = {}
        for flat in self.layout.flats:
            self.parameters |= _views(flat, self._rows[flat.name])
        for key, value in values.items():
            self.parameters[key][...] = value
        self._states: dict[str, dict[str, Array]] = {}
        self.steps = 0

    def step(
        self, gradients: Mapping[str, Array], *, clip_norm: float | None = None
    ) -> float | None:
        """Averages the gradients over the ranks, updates this rank's slices, and gathers the parameters.

        gradients: of every parameter, with its shape; they are not changed. clip_norm: the largest norm of the
        average; larger ones are scaled to it. Returns the norm before that, or None without `clip_norm`: the same
        float32 value whatever the number of ranks.
        Exchanges the bytes of an allreduce. Blocks. Raises what rabit.reducescatter and rabit.allgather do,
        InvalidArgument if a gradient is missing or has another shape.
        """
        self._check_gradients(gradients)
        scattered = [self._scatter(flat, gradients) for flat in self.layout.flats]
        parts = {flat.name: handle.result() for flat, handle in scattered}
        norm = None
        if clip_norm is not None:
            norm = self._norm(parts)
            # As torch.nn.utils.clip_grad_norm_ has it.
            factor = min(1.0, clip_norm / (norm + 1e-6))
            for part in parts.values():
                part *= part.dtype.type(factor)
        self.steps += 1
        for flat in self.layout.flats:
            self._update_part(flat, parts[flat.name])
        gathered = [
            (
                flat,
                allgather_async(
                    self._own_rows(flat),
                    f"{self._name}.{flat.name}.gather",
                    self._set,
                    engine=self._engine,
                ),
            )
            for flat in self.layout.flats
        ]
        for flat, handle in gathered:
            self._rows[flat.name][...] = handle.result()
        return norm

    def state_dict(self) -> dict[str, Any]:
        """The parameters and this rank's part of the optimizer's state, by name, without communication.

        {"steps": int, "parameters": {name: array}, "state": {key: {name: Part}}}: a Part holds elements of the
        flattened tensor, so rabit.checkpoint saves each element once and a job of any size can load it.
        """
        state: dict[str, dict[str, Part]] = {}
        for key in self._state_keys():
            state[key] = {}
            for entry in self.layout.entries:
                owned = self.layout.slice_of(entry.name, self._rank)
                values = self._states.get(entry.name, {}).get(key, np.empty(0, entry.dtype))
                state[key][entry.name] = Part(
                    values, owned.start if owned.length else 0, entry.count
                )
        parameters = {name: value.copy() for name, value in self.parameters.items()}
        return {"steps": self.steps, "parameters": parameters, "state": state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes what `state_dict` gave, in a job of any size; a Part may hold any elements of its tensor.

        Blocks: the ranks exchange their parts, one tensor at a time. Raises InvalidArgument if a name or a shape
        differs, or elements are missing.
        """
        names = {entry.name for entry in self.layout.entries}
        given = state["parameters"]
        if set(given) != names:
            raise InvalidArgument(
                f"load_state_dict: the parameters are {', '.join(sorted(given))}; "
                f"this model has {', '.join(sorted(names))}."
            )
        for name, value in given.items():
            if value.shape != self.parameters[name].shape:
                raise InvalidArgument(
                    f"load_state_dict: {name!r} has shape {value.shape}; this model's has "
                    f"{self.parameters[name].shape}."
                )
            self.parameters[name][...] = value
        self._states = {}
        for key, parts in state["state"].items():
            for name, part in parts.items():
                owned, values = self._exchanged(f"{key}.{name}", name, part)
                if owned.length:
                    self._states.setdefault(name, {})[key] = values
        self.steps = int(state["steps"])

    def _exchanged(self, label: str, name: str, part: Part) -> tuple[Interval, Array]:
        """This rank's elements of a tensor that lies on the ranks in other parts."""
        prefix = f"{self._name}.load.{label}"
        whole = joined(None, prefix, repr(label), part, self._set, self._engine)
        owned = self.layout.slice_of(name, self._rank)
        return owned, whole[owned.start : owned.start + owned.length].copy()

    def _scatter(self, flat: Flat, gradients: Mapping[str, Array]) -> tuple[Flat, Handle]:
        rows = np.zeros((flat.rows, self.layout.block), flat.dtype)
        for name, view in _views(flat, rows).items():
            view[...] = gradients[name]
        name = f"{self._name}.{flat.name}.scatter"
        return flat, reducescatter_async(rows, name, process_set=self._set, engine=self._engine)

    def _update_part(self, flat: Flat, gradient: Array) -> None:
        own, flat_gradient = self._own_rows(flat).reshape(-1), gradient.reshape(-1)
        for entry, owned, begin in self.layout.slices_of(flat, self._rank):
            end = begin + owned.length
            state = self._states.setdefault(entry.name, {})
            self._update(own[begin:end], flat_gradient[begin:end], state, self.steps)

    def _norm(self, parts: Mapping[str, Array]) -> float:
        squares = SquareSum()
        for part in parts.values():
            squares.add(part, self.layout.block)
        name = f"{self._name}.norm"
        return squares.norm(
            lambda digits: allreduce(
                digits, name=name, op=Sum, process_set=self._set, engine=self._engine
            )
        )

    def _own_rows(self, flat: Flat) -> Array:
        rows = self.layout.part(flat, self._rank)
        own: Array = self._rows[flat.name][rows.start : rows.start + rows.length]
        return own

    def _state_keys(self) -> list[str]:
        """Of all ranks: one that owns nothing has no state of its own to look at."""
        probe: dict[str, Array] = {}
        if self.steps:
            self._update(np.zeros(1, np.float32), np.zeros(1, np.float32), probe, 1)
        return list(probe)

    def _check_layouts(self) -> None:
        rank = self.layout.first_other(
            lambda own: allgather(own, f"{self._name}.layout", self._set, engine=self._engine)
        )
        if rank is not None:
            raise Mismatch(
                f"ShardedState {self._name!r} on rank {self._rank}: rank {rank} has other tensors. "
                "Give every rank the same names, shapes and types in the same order."
            )

    def _check_gradients(self, gradients: Mapping[str, Array]) -> None:
        for name, parameter in self.parameters.items():
            shape = np.shape(gradients[name]) if name in gradients else None
            if shape != parameter.shape:
                found = "is missing" if shape is None else f"has shape {shape}"
                raise InvalidArgument(
                    f"ShardedState.step on rank {self._rank}: the gradient of {name!r} {found}; "
                    f"expected shape {parameter.shape}."
                )


def _views(flat: Flat, rows: Array) -> dict[str, Array]:
    elements = rows.reshape(-1)
    return {
        entry.name: elements[start : start + entry.count].reshape(entry.shape)
        for entry, start in zip(flat.entries, flat.starts, strict=True)
    }
