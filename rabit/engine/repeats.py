"""Calls that a program makes again: their C form is kept, and a repeat finds it by one key.

A training loop reduces the same tensors under the same names in every step.  What is left to do then
is to see that they are the same, and one call of the extension module (native/python), which reads
the memory of NumPy arrays and of tensors that offer DLPack's C exchange interface.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from rabit._native import address_of_pointer
from rabit.engine.batch import consumer_of, new_structs
from rabit.engine.group_handle import GroupHandle, Several
from rabit.engine.handle import SLICE_MS, Finish, Handle, begun
from rabit.engine.native_engine import NativeEngine

if TYPE_CHECKING:
    from rabit.engine.request import Request
    from rabit.engine.tensor import TensorView

__all__ = ["GroupRepeat", "Kept", "Repeats"]

_KEPT_MAX = 1024
_Kind = TypeVar("_Kind", bound=Handle)


class Kept:
    """A call that has come before: its requests in their C form, which is only read."""

    __slots__ = (
        "_native",
        "address",
        "arguments",
        "consumer",
        "is_negated",
        "kind",
        "misses",
        "name",
        "names",
        "owned",
    )

    def __init__(
        self,
        native: NativeEngine,
        requests: Sequence[Request],
        arguments: tuple[Any, ...],
        tensors: Sequence[Any],
    ) -> None:
        self._native = native
        self.owned = new_structs(requests)
        self.address = address_of_pointer(self.owned[0])
        self.arguments = arguments
        self.kind = type(tensors[0])
        # torch marks a tensor as negated and leaves its memory, and what describes that does not say so.
        self.is_negated = getattr(self.kind, "is_neg", None)
        self.names = [request.name for request in requests]
        self.name = self.names[0]
        self.consumer = consumer_of(requests[0])  # of tensors like these
        self.misses = 0  # calls under its key that were for other tensors

    def run(self, source: Any, target: Any = None, number: str | None = None) -> bool:
        """Runs it on `source`, in place unless there is a `target`, and waits for it.

        number: the operation's name if its caller gave none.  False if it was for other tensors.
        Raises what went wrong.
        """
        if self.consumer is not None:
            handle = self.start(Handle, source, target, None, number)
            if handle is not None:
                handle.wait()
            return handle is not None
        native = self._native
        if native.orphans:
            native.sweep()
        handles: list[int] = []
        try:
            code = native.calls.run(self.address, source, target, number, SLICE_MS, False, handles)
        except BaseException:
            native.drop(handles, (source, target))
            raise
        if code is None:
            return True
        if code is False:
            return False
        if not handles:
            native.fail(code)
        Handle(native, handles[0], number or self.name, (source, target), None, code).wait()
        return True

    def start(
        self,
        kind: type[_Kind],
        source: Any,
        target: Any = None,
        finish: Finish | None = None,
        number: str | None = None,
        *,
        waits: bool = False,
    ) -> _Kind | None:
        """Like `run`, but returns a handle of this `kind` at once; None where `run` says False.

        target: False has the engine allocate the output.  waits: the thread does the engine's work meanwhile, and
        the handle has finished or is to be waited for.
        """
        native = self._native
        if native.orphans:
            native.sweep()
        # The library has copied all that it needs of the request but the tensors.
        tensors = source if target is None or target is False else (source, target)
        if waits and self.consumer is None:
            handles: list[int] = []
            try:
                code = native.calls.run(
                    self.address, source, target, number, SLICE_MS, True, handles
                )
            except BaseException:
                native.drop(handles, tensors)
                raise
            if code is False:
                return None
            if not handles:
                native.fail(code)
            return kind(native, handles[0], number or self.name, tensors, finish, code)
        value = native.calls.start(self.address, source, target, number)
        if value is False:
            return None
        if value < 0:
            native.fail(-value)
        return begun(kind, native, value, number or self.name, tensors, finish, self.consumer)


class GroupRepeat:
    """One call for a list of tensors, which may have come before; calls without a name are not kept."""

    __slots__ = ("_arguments", "_kept", "_key", "_repeats", "_tensors")

    def __init__(
        self,
        repeats: Repeats,
        key: tuple[Any, ...] | None,
        arguments: tuple[Any, ...],
        tensors: Sequence[Any],
    ) -> None:
        """key: the public function, name, group and number of tensors, or None: it is not kept.
        arguments: all others; they, the key and tensors of one kind make the same requests."""
        kept = repeats.kept.get(key)
        if kept is not None and (
            kept.arguments != arguments
            or {*map(type, tensors)} != {kept.kind}
            or (kept.is_negated is not None and any(map(kept.is_negated, tensors)))
        ):
            kept = None
        self._kept = kept
        self._repeats = repeats
        self._key = key
        self._arguments = arguments
        self._tensors = tensors

    @property
    def comes_again(self) -> bool:
        """False: `start` would refuse any tensors."""
        return self._kept is not None

    def start(
        self,
        targets: Sequence[Any] | None = None,
        finish: Callable[[Any], Finish | None] | None = None,
    ) -> GroupHandle | None:
        """Starts it, in place unless there are `targets`; None: it was for other tensors.

        What each handle gives is the target, or else the tensor.  With `finish`, the engine allocates
        the outputs, and what a handle gives is finish(tensor)(handle).
        """
        kept = self._kept
        if kept is None:
            return None
        native = self._repeats.native
        if native.orphans:
            native.sweep()
        tensors = list(self._tensors)
        results = tensors if targets is None else list(targets)
        written = False if finish is not None else None if targets is None else results
        values = native.calls.start_several(kept.address, tensors, written)
        if values is False:
            return None
        if type(values) is int:
            native.fail(-values)
        several = Several(native, values, kept.names, tensors, finish, results, kept.consumer)
        return GroupHandle(several=several)

    def keep(self, requests: Sequence[Request]) -> None:
        """Lets `requests`, made for this call, come again with tensors like these."""
        if self._key is not None and len(set(map(type, self._tensors))) == 1:
            self._repeats.keep(self._key, requests, self._arguments, self._tensors)


class Repeats:
    """The requests of one engine that may come again.  Thread-safe."""

    __slots__ = ("kept", "native")

    def __init__(self, native: NativeEngine) -> None:
        self.native = native
        self.kept: dict[Any, Kept] = {}

    def find(self, key: Any, arguments: tuple[Any, ...], tensor: Any) -> Kept | None:
        """What was kept for such a call; None: nothing.

        key: see `Submission.key`; arguments: the other ones of the public function, which with the key and
        a tensor of one kind make one request.
        """
        kept = self.kept.get(key)
        if kept is None or kept.kind is not type(tensor) or kept.arguments != arguments:
            return None
        if kept.is_negated is not None and kept.is_negated(tensor):
            return None
        return kept

    def keep(
        self,
        key: Any,
        requests: Sequence[Request],
        arguments: tuple[Any, ...],
        tensors: Sequence[Any],
    ) -> None:
        """Keeps what a call with equal arguments, for tensors like these, would otherwise make again."""
        if self.native.calls is None or any(_is_permuted(request.input) for request in requests):
            return  # The extension module knows tensors in row-major order alone.
        before = self.kept.get(key)
        misses = 0 if before is None else before.misses + 1
        if before is not None and misses & (misses - 1):
            before.misses = misses  # Where each call is for other tensors, few of them are kept.
            return
        if len(self.kept) >= _KEPT_MAX:
            self.kept.clear()
        made = self.kept[key] = Kept(self.native, requests, arguments, tensors)
        made.misses = misses


def _is_permuted(view: TensorView | None) -> bool:
    return view is not None and view.axis_order != 0
