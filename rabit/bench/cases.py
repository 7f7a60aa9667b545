"""Case: one collective of one size, with its buffers and what must come out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rabit.bench.options import KIND_NAMES
from rabit.engine.engine import Engine
from rabit.engine.request import Request
from rabit.engine.tensor import TensorView, address_of, numpy_dtype
from rabit.types import DType, Kind, ReduceOp

__all__ = ["Case", "Spec", "bus_factor"]

Array = np.ndarray[Any, Any]

# Inputs repeat after so many elements, and so do results of element-wise kinds.
_PERIOD = 7
_REDUCES = {Kind.ALLREDUCE, Kind.REDUCE, Kind.REDUCESCATTER}
_ROOTED = {Kind.BROADCAST, Kind.REDUCE, Kind.GATHER, Kind.SCATTER}
_IN_PARTS = {Kind.ALLGATHER, Kind.REDUCESCATTER, Kind.ALLTOALL, Kind.GATHER, Kind.SCATTER}
_IN_PLACE = {Kind.ALLREDUCE, Kind.BROADCAST, Kind.REDUCE}


@dataclass(frozen=True)
class Spec:
    """What is measured.  bytes: about, of the larger of input and output."""

    kind: Kind
    bytes: int
    dtype: DType
    op: ReduceOp = ReduceOp.SUM
    root: int = 0
    backend: str = ""

    @staticmethod
    def kind_of(name: str) -> Kind:
        return {each: Kind[each.upper()] for each in KIND_NAMES}[name]

    @property
    def has_op(self) -> bool:
        return self.kind in _REDUCES

    @property
    def is_rooted(self) -> bool:
        return self.kind in _ROOTED


def bus_factor(kind: Kind, size: int) -> float:
    """Bytes that pass the busiest link of a rank, for each byte of the larger buffer.

    This is the convention of NCCL's benchmarks: the least that any algorithm has to move.
    """
    if kind is Kind.ALLREDUCE:
        return 2 * (size - 1) / size
    return (size - 1) / size if kind in _IN_PARTS else 1.0


class Case:
    """The buffers of one rank.  `prepare` fills them, `wrong` counts what came out wrong."""

    def __init__(self, spec: Spec, engine: Engine) -> None:
        self.spec, self._rank, self._size = spec, engine.rank, engine.size
        count = max(1, spec.bytes // spec.dtype.itemsize)
        self._part = max(1, count // engine.size)
        self.count = self._part * engine.size if spec.kind in _IN_PARTS else count
        if spec.kind is Kind.BARRIER:
            self.count = 0
        kind = spec.kind
        is_root = engine.rank == spec.root
        is_small_in = kind in (Kind.ALLGATHER, Kind.GATHER) or (
            kind is Kind.SCATTER and not is_root
        )
        is_small_out = kind in (Kind.REDUCESCATTER, Kind.SCATTER)
        storage = numpy_dtype(spec.dtype)
        # A rank that is no root hands nothing in to a scatter, and takes nothing from a gather.
        in_count = self._part if is_small_in else self.count
        if kind is Kind.SCATTER and not is_root:
            in_count = 0
        self._input: Array = np.zeros(in_count, storage)
        self._output: Array = self._input
        if kind not in _IN_PLACE:
            out_count = self._part if is_small_out else self.count
            self._output = np.zeros(
                0 if kind is Kind.GATHER and not is_root else out_count, storage
            )

    @property
    def bytes(self) -> int:
        return self.count * self.spec.dtype.itemsize

    def request(self, name: str, engine: Engine) -> Request:
        spec = self.spec
        request = Request(
            spec.kind,
            name,
            op=spec.op,
            root=spec.root if spec.is_rooted else -1,
            backend=engine.backend(spec.backend) if spec.backend else -1,
        )
        if spec.kind is Kind.BARRIER:
            return request
        request.input = self._view(self._input)
        if spec.kind is not Kind.GATHER or self._rank == spec.root:
            request.output = self._view(self._output)
        if spec.kind is Kind.ALLTOALL or (spec.kind is Kind.SCATTER and self._rank == spec.root):
            request.splits = [self._part] * self._size
        return request

    def _view(self, array: Array) -> TensorView:
        return TensorView(address_of(array), array.shape, self.spec.dtype, keepalive=array)

    def prepare(self, has_values: bool) -> None:
        """Fills the buffers: the input with values, or with zeros, which many sums leave as they are."""
        kind, rank = self.spec.kind, self._rank
        self._output[:] = 0
        if not has_values:
            self._input[:] = 0
        elif kind in (Kind.ALLTOALL, Kind.SCATTER) and self._input.size:
            for to in range(self._size):
                self._input[to * self._part : (to + 1) * self._part] = self._pattern(
                    rank + to, self._part
                )
        else:
            self._input[:] = self._pattern(rank, self._input.size)

    def wrong(self) -> int:
        """How many elements of the output are not what they must be, after `prepare(True)`."""
        kind, rank, root = self.spec.kind, self._rank, self.spec.root
        if kind is Kind.BARRIER or (kind in (Kind.REDUCE, Kind.GATHER) and rank != root):
            return 0
        if kind is Kind.BROADCAST:
            return self._differing(self._output, self._pattern(root, self.count))
        if kind is Kind.SCATTER:
            return self._differing(self._output, self._pattern(root + rank, self._part))
        if kind in _REDUCES:
            first = rank * self._part if kind is Kind.REDUCESCATTER else 0
            return self._differing(self._output, self._reduced(first, self._output.size))
        offset = rank if kind is Kind.ALLTOALL else 0
        return sum(
            self._differing(
                self._output[of * self._part : (of + 1) * self._part],
                self._pattern(of + offset, self._part),
            )
            for of in range(self._size)
        )

    @staticmethod
    def _differing(found: Array, expected: Array) -> int:
        return int(np.count_nonzero(found != expected))

    def _pattern(self, number: int, count: int) -> Array:
        return np.resize(self._encode(_values(number)), count)

    def _reduced(self, first: int, count: int) -> Array:
        """The reduction of what all ranks hold, from element `first` on."""
        everyone = np.stack([_values(rank) for rank in range(self._size)])
        combine = {ReduceOp.SUM: np.add, ReduceOp.MIN: np.minimum, ReduceOp.MAX: np.maximum}
        found = self._encode(combine[self.spec.op].reduce(everyone, axis=0))
        return np.resize(np.roll(found, -(first % _PERIOD)), count)

    def _encode(self, values: Array) -> Array:
        if self.spec.dtype is DType.BFLOAT16:  # Exact: these are small whole numbers.
            return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        return values.astype(numpy_dtype(self.spec.dtype))


def _values(number: int) -> Array:
    """Whole numbers that are small, so that sums over many ranks are exact in every type."""
    return (np.arange(_PERIOD) * 3 + number) % 4
