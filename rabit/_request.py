"""Request: one operation to submit; Batch: requests whose C form is kept and reused."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rabit._errors import InvalidArgument
from rabit._handle import SLICE_MS, Handle
from rabit._native import check, ffi
from rabit._native_engine import NativeEngine
from rabit._tensor import TensorView
from rabit._types import Kind, ReduceOp

__all__ = ["Batch", "Request"]


@dataclass(slots=True)
class Request:
    """One operation.

    output: where the result goes; may be the input.  None: the engine allocates it.
    root: global rank; for SEND and RECV the other rank.
    group, codec, backend: numbers from the same engine.
    splits: alltoall, scatter: rows for each rank of the group.
    finish: turns the finished handle into what `Handle.result` returns.
    """

    kind: Kind
    name: str
    input: TensorView | None = None
    output: TensorView | None = None
    op: ReduceOp = ReduceOp.SUM
    root: int = -1
    priority: int = 0
    group: int = 0
    codec: int = 0
    backend: int = -1
    prescale: float = 1.0
    postscale: float = 1.0
    splits: Sequence[int] | None = None
    finish: Callable[[Handle], Any] | None = None


_REQUEST_SIZE = ffi.sizeof("rabit_request")
_WORDS = _REQUEST_SIZE // 8
_INPUT_WORD = (ffi.offsetof("rabit_request", "input") + ffi.offsetof("rabit_tensor", "data")) // 8
_OUTPUT_WORD = (ffi.offsetof("rabit_request", "output") + ffi.offsetof("rabit_tensor", "data")) // 8


class Batch:
    """Requests in their C form.  Submitting again costs neither conversion nor encoding.

    Thread-safe for calls that concern different requests.
    """

    def __init__(self, native: NativeEngine, requests: Sequence[Request]) -> None:
        self._native = native
        count = len(requests)
        self._array: Any = ffi.new("rabit_request[]", count)
        self._names = [each.name for each in requests]
        self._finishes = [each.finish for each in requests]
        self._keepalives: list[Any] = [_keepalive(each) for each in requests]
        self._borrowed: list[Any] = []
        for index, each in enumerate(requests):
            self._fill(self._array[index], each)

    def __len__(self) -> int:
        return len(self._names)

    @functools.cached_property
    def _words(self) -> memoryview:
        """The requests as 64-bit words."""
        return memoryview(ffi.buffer(self._array)).cast("B").cast("Q")

    @property
    def structs(self) -> Any:
        """The requests in their C form; valid while the batch lives."""
        return self._array

    def set_pointers(self, index: int, input_ptr: int, output_ptr: int) -> None:
        """Moves request `index` to other memory of the same shapes and types.

        Only while the request is not in flight.  Give `submit` the owner of the memory.
        """
        first = index * _WORDS
        self._words[first + _INPUT_WORD] = input_ptr
        self._words[first + _OUTPUT_WORD] = output_ptr

    def submit(
        self,
        indices: Sequence[int] | None = None,
        keepalive: Sequence[Any] | None = None,
    ) -> list[Handle]:
        """Submits the requests `indices` (None: all) in one call; returns at once.

        All or none; they become ready together.
        keepalive: for each submitted request what owns its memory; None: the views' own.
        """
        native = self._native
        if native._orphans:
            native.sweep()
        pointer = native.open_pointer()
        if indices is None:
            indices = range(len(self._names))
        count = len(indices)
        if count == 1:
            structs = self._array + indices[0]
        elif isinstance(indices, range) and indices.step == 1:
            structs = self._array + indices.start
        else:
            structs = self._gather(indices)
        values = ffi.new("rabit_handle[]", count)
        code = native.library.rabit_submit(pointer, structs, count, values)
        if code:
            check(native.library, code)
        names, finishes = self._names, self._finishes
        if keepalive is None:
            keeps = self._keepalives
            return [
                Handle(native, value, names[index], (self, keeps[index]), finishes[index])
                for index, value in zip(indices, ffi.unpack(values, count), strict=True)
            ]
        return [
            Handle(native, value, names[index], (self, keep), finishes[index])
            for index, value, keep in zip(
                indices, ffi.unpack(values, count), keepalive, strict=True
            )
        ]

    def run(self) -> Handle:
        """Submits the only request and waits for a while; `result` of the Handle waits on.

        The calling thread does the engine's work meanwhile, which is faster than submit and wait.
        """
        native = self._native
        if native._orphans:
            native.sweep()
        value = ffi.new("rabit_handle*")
        code = native.library.rabit_run(native.open_pointer(), self._array, SLICE_MS, value)
        if not value[0]:
            check(native.library, code)
        keep = (self, self._keepalives[0])
        return Handle(native, value[0], self._names[0], keep, self._finishes[0], code)

    def _gather(self, indices: Sequence[int]) -> Any:
        """The structs of `indices` side by side."""
        structs = ffi.new("rabit_request[]", len(indices))
        target = memoryview(ffi.buffer(structs)).cast("B").cast("Q")
        words = self._words
        for position, index in enumerate(indices):
            to, at = position * _WORDS, index * _WORDS
            target[to : to + _WORDS] = words[at : at + _WORDS]
        return structs

    def _fill(self, struct: Any, request: Request) -> None:
        name = ffi.new("char[]", _encode_name(request.name))
        self._borrowed.append(name)
        struct.struct_size = _REQUEST_SIZE
        struct.kind = request.kind
        struct.reduce_op = request.op
        struct.root = request.root
        struct.priority = request.priority
        struct.group = request.group
        struct.codec = request.codec
        struct.backend = request.backend
        struct.prescale = request.prescale
        struct.postscale = request.postscale
        struct.name = name
        if request.splits is not None:
            splits = ffi.new("int64_t[]", list(request.splits))
            self._borrowed.append(splits)
            struct.splits = splits
            struct.splits_count = len(request.splits)
        self._fill_tensor(struct.input, request.input)
        self._fill_tensor(struct.output, request.output)

    def _fill_tensor(self, struct: Any, view: TensorView | None) -> None:
        struct.device_kind = 1
        if view is None:
            return
        struct.data = ffi.cast("void*", view.data)
        struct.count = view.count
        struct.dtype = view.dtype
        struct.device_kind = view.device
        struct.device_index = view.device_index
        struct.ready_event = view.ready_event
        if view.shape:
            shape = ffi.new("int64_t[]", view.shape)
            self._borrowed.append(shape)
            struct.shape = shape
            struct.ndim = len(view.shape)


def _encode_name(name: str) -> bytes:
    encoded = name.encode("utf-8")
    if not 1 <= len(encoded) <= 1024 or b"\0" in encoded:
        raise InvalidArgument(
            f"the name {name[:60]!r} has {len(encoded)} bytes of UTF-8: names have 1 to 1024 and "
            "no NUL. Choose another, equal on every rank."
        )
    return encoded


def _keepalive(request: Request) -> tuple[Any, Any]:
    return (
        request.input.keepalive if request.input is not None else None,
        request.output.keepalive if request.output is not None else None,
    )
