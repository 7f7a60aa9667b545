"""Batch: requests whose C form is kept and reused; and how requests without one are submitted."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from rabit._native import address_of_pointer, check, ffi
from rabit.engine.handle import SLICE_MS, Finish, Handle
from rabit.engine.native_engine import NativeEngine
from rabit.errors import InvalidArgument

if TYPE_CHECKING:
    from rabit.engine.request import Request
    from rabit.engine.tensor import TensorView

__all__ = [
    "Batch",
    "consumer_of",
    "encode_name",
    "new_structs",
    "refuse",
    "run",
    "submit",
]

_REQUEST_SIZE = ffi.sizeof("rabit_request")
_WORDS = _REQUEST_SIZE // 8


def _word(tensor: str, field: str) -> int:
    """Which 64-bit word of a request holds `field` of its input or output."""
    offset: int = ffi.offsetof("rabit_request", tensor) + ffi.offsetof("rabit_tensor", field)
    return offset // 8


_INPUT_WORD, _INPUT_STREAM_WORD = _word("input", "data"), _word("input", "stream")
_OUTPUT_WORD, _OUTPUT_STREAM_WORD = _word("output", "data"), _word("output", "stream")


class Batch:
    """Requests in their C form.  Submitting again costs neither conversion nor encoding.

    Thread-safe for calls that concern different requests.
    """

    def __init__(self, native: NativeEngine, requests: Sequence[Request]) -> None:
        self._native = native
        _place(native, requests)
        self._names = [request.name for request in requests]
        self._finishes = [request.finish for request in requests]
        self._consumers = [consumer_of(request) for request in requests]
        self._keepalives: list[Any] = [_keepalive(request) for request in requests]
        self._array, self._borrowed = new_structs(requests)

    def __len__(self) -> int:
        return len(self._names)

    @functools.cached_property
    def _address(self) -> int:
        return address_of_pointer(self._array)

    @functools.cached_property
    def _words(self) -> memoryview:
        """The requests as 64-bit words."""
        return memoryview(ffi.buffer(self._array)).cast("B").cast("Q")

    @property
    def structs(self) -> Any:
        """The requests in their C form; valid while the batch lives."""
        return self._array

    def set_pointers(self, index: int, input_ptr: int, output_ptr: int, stream: int = 0) -> None:
        """Moves request `index` to other memory of the same shapes and types, on the same device.

        stream: see TensorView.

        Only while the request is not in flight.  Give `submit` the owner of the memory.
        """
        first = index * _WORDS
        self._words[first + _INPUT_WORD] = input_ptr
        self._words[first + _OUTPUT_WORD] = output_ptr
        self._words[first + _INPUT_STREAM_WORD] = stream

    def set_operands(self, index: int, residual_ptr: int, seed: int) -> None:
        """Gives request `index` its codec's residual, 0: none, and seed, as `set_pointers` does."""
        struct = self._array[index]
        struct.residual = ffi.cast("void*", residual_ptr)
        struct.seed = seed

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
        if native.orphans:
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
            handles = [
                Handle(native, value, names[index], (self, keeps[index]), finishes[index])
                for index, value in zip(indices, ffi.unpack(values, count), strict=True)
            ]
        else:
            handles = [
                Handle(native, value, names[index], (self, keep), finishes[index])
                for index, value, keep in zip(
                    indices, ffi.unpack(values, count), keepalive, strict=True
                )
            ]
        consumers = self._consumers
        for index, handle in zip(indices, handles, strict=True):
            handle.consumer = consumers[index]
        return handles

    def run(self) -> Handle:
        """Submits the only request and waits for a while; `result` of the Handle waits on.

        The calling thread does the engine's work meanwhile, which is faster than submit and wait.
        """
        if self._consumers[0] is not None:
            return self.submit()[0]
        owned = (self._names[0], (self, self._keepalives[0]), self._finishes[0])
        return _run(self._native, self._array, ffi.new("rabit_handle*"), owned)

    def finish(self, keepalive: Any) -> Handle | None:
        """Like `run`, for callers that want no result; None: it has succeeded.

        keepalive: what owns the memory.
        """
        if self._consumers[0] is not None:
            return self.submit([0], [keepalive])[0]
        native, owned = self._native, (self._names[0], (self, keepalive), self._finishes[0])
        if native.calls is None:
            handle = _run(native, self._array, ffi.new("rabit_handle*"), owned)
            return None if handle.has_succeeded else handle
        if native.orphans:
            native.sweep()
        handles: list[int] = []
        try:
            code = native.calls.run(self._address, None, None, None, SLICE_MS, False, handles)
        except BaseException:
            native.drop(handles, owned[1])
            raise
        if code is None:
            return None
        if not handles:
            native.fail(code)
        return Handle(native, handles[0], *owned, code)

    def _gather(self, indices: Sequence[int]) -> Any:
        """The structs of `indices` side by side."""
        structs = ffi.new("rabit_request[]", len(indices))
        target = memoryview(ffi.buffer(structs)).cast("B").cast("Q")
        words = self._words
        for position, index in enumerate(indices):
            to, at = position * _WORDS, index * _WORDS
            target[to : to + _WORDS] = words[at : at + _WORDS]
        return structs


def _run(
    native: NativeEngine, struct: Any, slot: Any, request: tuple[str, Any, Finish | None]
) -> Handle:
    """Runs the struct; request: its name, what owns its memory, and how it finishes."""
    if native.orphans:
        native.sweep()
    try:
        code = native.run(native.open_pointer(), struct, SLICE_MS, slot)
    except BaseException:
        native.drop([slot[0]], request[1])
        raise
    value = slot[0]
    if not value:
        check(native.library, code)
    return Handle(native, value, *request, code)


def _submit(
    native: NativeEngine, struct: Any, slot: Any, request: tuple[str, Any, Finish | None]
) -> Handle:
    """Like _run, but returns at once."""
    if native.orphans:
        native.sweep()
    code = native.library.rabit_submit(native.open_pointer(), struct, 1, slot)
    if code:
        check(native.library, code)
    return Handle(native, slot[0], *request)


Start = Callable[[NativeEngine, Any, Any, tuple[str, Any, Finish | None]], Handle]


class _Plan:
    """The C form of a request that a thread repeats: name and memory alone are written anew."""

    __slots__ = ("_borrowed", "_name", "_words", "array", "handle")

    def __init__(self, request: Request) -> None:
        self.array, self._borrowed = new_structs((request,))
        self._words = memoryview(ffi.buffer(self.array)).cast("B").cast("Q")
        self._name = request.name
        self.handle: Any = ffi.new("rabit_handle*")

    def set(self, request: Request) -> None:
        if request.name != self._name:
            name = ffi.new("char[]", encode_name(request.name))
            self.array[0].name = self._borrowed[0] = name
            self._name = request.name
        source, target = request.input, request.output
        if source is not None:
            self._words[_INPUT_WORD] = source.data
            self._words[_INPUT_STREAM_WORD] = source.stream
        if target is not None:
            self._words[_OUTPUT_WORD] = target.data
            self._words[_OUTPUT_STREAM_WORD] = target.stream
        self.handle[0] = 0


class _OfThread(threading.local):
    """The C form is written and read by one thread at a time."""

    def __init__(self) -> None:
        self.plans: dict[tuple[Any, ...], _Plan] = {}


_PLANS_MAX = 256
_here = _OfThread()


def _place(native: NativeEngine, requests: Sequence[Request]) -> None:
    """Requests that name no backend have that of their group, which a process set may name."""
    backends = native.group_backends
    if not backends:
        return
    for request in requests:
        if request.backend < 0:
            request.backend = backends.get(request.group, -1)


def submit(native: NativeEngine, requests: Sequence[Request]) -> list[Handle]:
    """Submits all of `requests` or none; returns at once."""
    if len(requests) == 1:
        return [_with_plan(native, requests[0], _submit)]
    return Batch(native, requests).submit()


def run(native: NativeEngine, request: Request) -> Handle:
    """Submits `request` and waits for a while; `result` of the Handle waits on.

    The calling thread does the engine's work meanwhile, which is faster than submit and wait.
    """
    return _with_plan(native, request, _run if consumer_of(request) is None else _submit)


def consumer_of(request: Request) -> Callable[[], int] | None:
    """Gives the stream on which a thread waits for the request; None: the host waits."""
    view = request.output if request.input is None else request.input
    return None if view is None else view.consumer


def _with_plan(native: NativeEngine, request: Request, start: Start) -> Handle:
    if request.residual is not None or request.seed:
        return Batch(native, (request,)).submit()[0]
    _place(native, (request,))
    layout = _layout_of(request)
    plans = _here.plans
    plan = plans.pop(layout, None)  # Away while it is used: a signal handler may call as well.
    if plan is None:
        plan = _Plan(request)
    plan.set(request)
    owned = (request.name, _keepalive(request), request.finish)
    handle = start(native, plan.array, plan.handle, owned)
    handle.consumer = consumer_of(request)
    if len(plans) >= _PLANS_MAX:
        plans.clear()
    plans[layout] = plan
    return handle


def _layout_of(request: Request) -> tuple[Any, ...]:
    """All of the C form but the name, the memory and the streams."""
    source, target, splits = request.input, request.output, request.splits
    return (
        request.kind,
        request.op,
        request.root,
        request.priority,
        request.group,
        request.codec,
        request.backend,
        request.prescale,
        request.postscale,
        None if splits is None else tuple(splits),
        _layout_of_view(source),
        None if target is None else source is target or _layout_of_view(target),
    )


def _layout_of_view(view: TensorView | None) -> tuple[Any, ...] | None:
    if view is None:
        return None
    return (tuple(view.shape), view.dtype, view.device, view.device_index, view.axis_order)


def new_structs(requests: Sequence[Request]) -> tuple[Any, list[Any]]:
    """The C form of `requests`, and what it points to: of the first one its name first."""
    borrowed: list[Any] = []
    array: Any = ffi.new("rabit_request[]", len(requests))
    for index, request in enumerate(requests):
        _fill(array[index], request, borrowed)
    return array, borrowed


def refuse(native: NativeEngine, request: Request, reason: str) -> None:
    """See Engine.refuse."""
    struct = ffi.new("rabit_request*")
    borrowed: list[Any] = []
    _fill(struct, request, borrowed)
    pointer = native.open_pointer()
    text = reason.encode(errors="backslashreplace")  # It may quote a name that is no UTF-8.
    check(native.library, native.library.rabit_refuse(pointer, struct, text))


def _fill(struct: Any, request: Request, borrowed: list[Any]) -> None:
    """Writes the C form; `borrowed` gets what it points to, the name first."""
    name = ffi.new("char[]", encode_name(request.name))
    borrowed.append(name)
    struct.struct_size = _REQUEST_SIZE
    struct.kind = request.kind
    struct.reduce_op = request.op
    try:
        struct.root = request.root
        struct.priority = request.priority
    except (TypeError, OverflowError):
        raise TypeError(
            f"{request.kind} '{request.name}': root {request.root!r} and priority {request.priority!r} are not "
            "both integers of 32 bits. Pass such ones."
        ) from None
    struct.group = request.group
    struct.codec = request.codec
    struct.backend = request.backend
    struct.prescale = request.prescale
    struct.postscale = request.postscale
    struct.name = name
    if request.splits is not None:
        splits = ffi.new("int64_t[]", list(request.splits))
        borrowed.append(splits)
        struct.splits = splits
        struct.splits_count = len(request.splits)
    if request.residual is not None:
        struct.residual = ffi.cast("void*", request.residual.data)
    struct.seed = request.seed
    _fill_tensor(struct.input, request.input, borrowed)
    _fill_tensor(struct.output, request.output, borrowed)
    view = request.input or request.output
    struct.axis_order = 0 if view is None else view.axis_order


def _fill_tensor(struct: Any, view: TensorView | None, borrowed: list[Any]) -> None:
    struct.device_kind = 1
    if view is None:
        return
    struct.data = ffi.cast("void*", view.data)
    struct.count = view.count
    struct.dtype = view.dtype
    struct.device_kind = view.device
    struct.device_index = view.device_index
    struct.stream = view.stream
    if view.shape:
        shape = ffi.new("int64_t[]", view.shape)
        borrowed.append(shape)
        struct.shape = shape
        struct.ndim = len(view.shape)


def encode_name(name: str) -> bytes:
    """The name in the C form.  Raises InvalidArgument if it has none."""
    try:
        encoded = name.encode("utf-8")
    except (AttributeError, UnicodeEncodeError):
        raise InvalidArgument(
            f"the name {name!r} of type {type(name).__name__} is not text that UTF-8 can encode. "
            "Choose another, equal on every rank."
        ) from None
    if not 1 <= len(encoded) <= 1024 or b"\0" in encoded:
        raise InvalidArgument(
            f"the name {name[:60]!r} has {len(encoded)} bytes of UTF-8: names have 1 to 1024 and "
            "no NUL. Choose another, equal on every rank."
        )
    return encoded


def _keepalive(request: Request) -> tuple[Any, ...]:
    return (
        request.input.keepalive if request.input is not None else None,
        request.output.keepalive if request.output is not None else None,
        request.residual.keepalive if request.residual is not None else None,
    )
