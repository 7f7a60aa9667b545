"""Shards: each rank updates its slices of the parameters, with its slices of the summed gradients.

Source: Rajbhandari et al., ZeRO: Memory Optimizations Toward Training Trillion Parameter Models (2020).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import numpy as np

import rabit
from rabit import InvalidArgument, Mismatch, ProcessSet
from rabit.sharding import Entry, Flat, FlatLayout, Interval, SquareSum
from rabit_mxnet.arrays import may_be_blocked, private_copy
from rabit_mxnet.loaded import mx
from rabit_mxnet.ops import gather_parts, scatter_gradients
from rabit_mxnet.sharding.elementwise import check_elementwise
from rabit_mxnet.sharding.given_away import give_away

__all__ = ["STAGES", "Shards"]

STAGES = ("optimizer", "gradients")
# Bytes of parameters that travel together. A flat leaves when its last gradient has been computed.
_FLAT_BYTES = 4 << 20
_FILLING = "(filling)"  # rows for ranks that would have none: an array of MXNet has at least one


class Shards:
    """The division of a trainer's parameters. One thread at a time.

    parameters: those that are trained, initialised, by their index in the trainer; backward: their indices in the
    order in which the backward pass reaches them. optimizer: its counts are those of all parameters on every rank.
    gives_away: whole gradients are freed when they have been sent.
    Blocks until every rank of the process set makes one. Raises Mismatch if their parameters differ.
    """

    def __init__(
        self,
        parameters: dict[int, Any],
        backward: Sequence[int],
        optimizer: Any,
        process_set: ProcessSet,
        names: str,
        gives_away: bool,
    ) -> None:
        self._parameters = parameters
        self._optimizer = optimizer
        self._set = process_set
        self._names = names
        self._gives_away = gives_away
        self._check_parameters()
        for dtype in sorted({_dtype(parameter) for parameter in parameters.values()}):
            check_elementwise(optimizer, dtype)
        self._index_of = {str(parameter.name): index for index, parameter in parameters.items()}
        entries = list(self._entries(backward))
        self.layout = FlatLayout(entries, process_set.size())
        missing = {flat.name: process_set.size() - flat.rows for flat in self.layout.flats}
        if max(missing.values()) > 0:
            filling = [self._filling(flat, missing[flat.name]) for flat in self.layout.flats]
            self.layout = FlatLayout([*entries, *filter(None, filling)], process_set.size())
        self._check_layouts()
        self._parts: dict[str, Any] = {}  # of the summed gradients, by flat
        self._fresh: dict[int, bool] = {}

    def interval(self, name: str) -> Interval:
        """The elements of the parameter that this rank updates."""
        return self.layout.slice_of(name, self._set.rank())

    def scatter(self, trained: Sequence[int]) -> None:
        """Starts to sum the gradients into the parts of their owners. Does not block."""
        if set(trained) != set(self._parameters):
            changed = set(trained) ^ set(self._parameters)
            raise InvalidArgument(
                f"shard on rank {rabit.rank()}: {len(changed)} parameters have been frozen or thawed since the first "
                "step. Make a new trainer afterwards"
            )
        for priority, flat in enumerate(self.layout.flats):
            whole = self._gradients(flat)
            part = self._rows(flat, self.layout.part(flat, self._set.rank()).length)
            name = f"{self._names}{flat.name}.scatter"
            # The backward pass reaches last what the next forward pass reads first.
            scatter_gradients(whole, part, name, priority, self._set)
            self._parts[flat.name] = part
        for index, parameter in self._parameters.items():
            self._fresh[index] = bool(parameter.data()._fresh_grad)
            if self._gives_away:
                give_away(parameter)

    def clip(self, max_norm: float) -> float:
        """Scales the summed gradients so that their norm is at most `max_norm`; the norm before. Blocks."""
        squares = SquareSum()
        slices = [gradient for flat in self.layout.flats for _, _, gradient in self._slices(flat)]
        for gradient in slices:
            squares.add(gradient.asnumpy())
        norm = squares.norm(
            lambda digits: rabit.allreduce(
                digits, name=f"{self._names}norm", op=rabit.Sum, process_set=self._set
            )
        )
        factor = max_norm / (norm + 1e-6)
        if not factor > 1.0:
            for gradient in slices:
                gradient *= factor
        return norm

    def update(self, updater: Any, ignores_stale: bool) -> None:
        """Updates this rank's slices, and starts to gather all of them. Does not block."""
        updated: dict[str, Any] = {}
        for index, parameter in self._parameters.items():
            if not ignores_stale and not self._fresh[index]:
                raise UserWarning(
                    f"the gradient of {parameter.name!r} on rank {rabit.rank()} has not been computed since the last "
                    "step. Pass ignore_stale_grad=True if this step does not use the parameter"
                )
            parameter.data()._fresh_grad = False
        for priority, flat in enumerate(self.layout.flats):
            for entry, owned, gradient in self._slices(flat):
                index = self._index_of[entry.name]
                weight = _elements(self._parameters[index].data(), owned)
                updated[entry.name] = weight
                if self._fresh[index]:
                    updater([index], [gradient], [weight])
            self._gather(flat, updated, priority)
        # Counts are kept for what other ranks update: rates follow them, and other numbers of ranks go on from them.
        for name, index in self._index_of.items():
            if name not in updated and self._fresh[index]:
                self._optimizer._update_count(index)
        self._parts, self._fresh = {}, {}

    def _gather(self, flat: Flat, updated: dict[str, Any], priority: int) -> None:
        rank, block = self._set.rank(), self.layout.block
        rows = self.layout.part(flat, rank)
        pieces: list[Any] = []
        filled = 0
        for entry, owned, begin in self.layout.slices_of(flat, rank):
            if entry.name in updated:
                pieces += [*_zeros(begin - filled, flat.dtype), updated[entry.name]]
                filled = begin + owned.length
        own = self._joined([*pieces, *_zeros(rows.length * block - filled, flat.dtype)])
        whole = self._rows(flat, flat.rows)
        gather_parts(own, whole, f"{self._names}{flat.name}.gather", priority, self._set)
        elements = whole.reshape((-1,))
        for entry, start in zip(flat.entries, flat.starts, strict=True):
            if entry.name in self._index_of:
                weight = self._parameters[self._index_of[entry.name]].data()
                value = elements[start : start + entry.count].reshape(weight.shape)
                weight[:] = value.as_np_ndarray() if isinstance(weight, mx.np.ndarray) else value

    def _slices(self, flat: Flat) -> Iterator[tuple[Entry, Interval, Any]]:
        """(entry, its elements that this rank owns, their summed gradient)."""
        elements = self._parts[flat.name].reshape((-1,))
        for entry, owned, begin in self.layout.slices_of(flat, self._set.rank()):
            if entry.name in self._index_of:
                yield entry, owned, elements[begin : begin + owned.length]

    def _gradients(self, flat: Flat) -> Any:
        """Those of this rank, as rows."""
        pieces: list[Any] = []
        filled = 0
        for entry, start in zip(flat.entries, flat.starts, strict=True):
            if entry.name in self._index_of:
                # What a backward pass has written is in row-major order.
                gradient = self._parameters[self._index_of[entry.name]].list_grad()[0]
                flattened = gradient.as_nd_ndarray().reshape((-1,))
                pieces += [*_zeros(start - filled, flat.dtype), flattened]
                filled = start + entry.count
        rest = flat.rows * self.layout.block - filled
        return self._joined([*pieces, *_zeros(rest, flat.dtype)])

    def _joined(self, pieces: list[Any]) -> Any:
        whole = pieces[0] if len(pieces) == 1 else mx.nd.concat(*pieces, dim=0)
        return whole.reshape((-1, self.layout.block))

    def _rows(self, flat: Flat, rows: int) -> Any:
        # Not empty(): its memory would be there before the backward pass has come so far.
        return mx.nd.zeros((rows, self.layout.block), dtype=flat.dtype)

    def _entries(self, backward: Sequence[int]) -> Iterator[Entry]:
        """Some megabytes of a type to a flat."""
        filled: dict[str, tuple[int, int]] = {}
        for index in backward:
            parameter = self._parameters[index]
            dtype = _dtype(parameter)
            unit, taken = filled.get(dtype, (0, 0))
            size = prod(parameter.shape) * np.dtype(dtype).itemsize
            if taken and taken + size > _FLAT_BYTES:
                unit, taken = unit + 1, 0
            filled[dtype] = unit, taken + size
            yield Entry(str(parameter.name), tuple(parameter.shape), dtype, str(unit))

    def _filling(self, flat: Flat, rows: int) -> Entry | None:
        if rows <= 0:
            return None
        shape = (rows * self.layout.block,)
        return Entry(_FILLING + flat.name, shape, flat.dtype, flat.entries[0].unit)

    def _check_parameters(self) -> None:
        if not self._parameters:
            raise InvalidArgument("shard: the trainer has no parameter with a gradient")
        for parameter in self._parameters.values():
            if self._gives_away and parameter.grad_req == "add":
                raise InvalidArgument(
                    f"shard='gradients': the gradient of {parameter.name!r} adds up over backward passes "
                    "(grad_req='add') and would be freed in each step. Use shard='optimizer'"
                )

    def _check_layouts(self) -> None:
        def gather(own: Any) -> Any:
            return rabit.allgather(own, name=f"{self._names}layout", process_set=self._set)

        rank = self.layout.first_other(gather)
        if rank is not None:
            raise Mismatch(
                f"shard: rank {rank} has other trained parameters than rank {self._set.rank()}. Give every rank the "
                "same model, and freeze the same parameters",
                rank,
            )


def _dtype(parameter: Any) -> str:
    return str(np.dtype(parameter.dtype).name)


def _elements(array: Any, interval: Interval) -> Any:
    """A new array of these elements in row-major order."""
    classic = array.as_nd_ndarray()
    # oneDNN may have given it another order.
    ordered = private_copy(classic) if may_be_blocked(classic) else classic
    return ordered.reshape((-1,))[interval.start : interval.start + interval.length].copy()


def _zeros(length: int, dtype: str) -> list[Any]:
    return [mx.nd.zeros((length,), dtype=dtype)] if length else []
