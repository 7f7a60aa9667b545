"""Calls that a program makes again: their C form is kept, and a repeat finds it by one key.

A training loop reduces the same tensors under the same names in every step.  What is left to do then
is to see that they are the same, and one call of the extension module (native/python), which reads
the memory of NumPy arrays and of tensors that offer DLPack's C exchange interface.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rabit._native import address_of_pointer
from rabit.engine.handle import SLICE_MS, Handle
from rabit.engine.native_engine import NativeEngine
from rabit.engine.request import Request, new_struct

__all__ = ["Repeat", "Repeats"]

_KEPT_MAX = 1024


class _Kept:
    """One request in its C form, which is only read."""

    __slots__ = ("address", "arguments", "kind", "name", "owned")

    def __init__(self, request: Request, arguments: tuple[Any, ...], kind: type) -> None:
        struct, borrowed = new_struct(request)
        self.owned = (struct, borrowed)
        self.address = address_of_pointer(struct)
        self.arguments = arguments
        self.kind = kind
        self.name = request.name


class Repeat:
    """One call, which may have come before: it is repeated, or else kept for the next.

    number: the operation's name if the caller gave none, else None.
    """

    __slots__ = ("_arguments", "_kept", "_key", "_repeats", "number")

    def __init__(
        self,
        repeats: Repeats,
        caller: str,
        name: str | None,
        number: str | None,
        arguments: tuple[Any, ...],
        tensor: Any,
    ) -> None:
        """caller: the public function; arguments: its other ones, which with `caller`, `name` and
        a tensor of one kind make one request."""
        key = (caller, name) if number is None else (caller, None, getattr(tensor, "shape", None))
        kept = repeats.kept.get(key)
        fits = kept is not None and kept.kind is type(tensor) and kept.arguments == arguments
        self._kept = kept if fits else None
        self._repeats = repeats
        self._key = key
        self._arguments = arguments
        self.number = number

    @property
    def comes_again(self) -> bool:
        """False: `run` and `start` would refuse any tensor."""
        return self._kept is not None

    def run(self, source: Any, target: Any = None) -> bool:
        """Runs it on `source`, in place unless there is a `target`, and waits for it.

        False if it has not come before, or was for other tensors.  Raises what went wrong.
        """
        kept = self._kept
        if kept is None:
            return False
        native = self._repeats.native
        if native.orphans:
            native.sweep()
        number = self.number
        failed = native.calls.run(kept.address, source, target, number, SLICE_MS)
        if failed is None:
            return True
        if failed is False:
            return False
        code, value = failed
        if not value:
            native.fail(code)
        Handle(native, value, number or kept.name, (kept, source, target), None, code).wait()
        return True

    def start(
        self, source: Any, target: Any = None, finish: Callable[[Handle], Any] | None = None
    ) -> Handle | None:
        """Like `run`, but returns a Handle at once; None where `run` says False."""
        kept = self._kept
        if kept is None:
            return None
        native = self._repeats.native
        if native.orphans:
            native.sweep()
        number = self.number
        value = native.calls.start(kept.address, source, target, number)
        if value is False:
            return None
        if value < 0:
            native.fail(-value)
        return Handle(native, value, number or kept.name, (kept, source, target), finish)

    def keep(self, request: Request, tensor: Any) -> None:
        """Lets `request`, made for this call, come again with tensors like `tensor`."""
        repeats = self._repeats
        if repeats.native.calls is None:
            return
        if len(repeats.kept) >= _KEPT_MAX:
            repeats.kept.clear()
        repeats.kept[self._key] = _Kept(request, self._arguments, type(tensor))


class Repeats:
    """The requests of one engine that may come again.  Thread-safe."""

    __slots__ = ("kept", "native")

    def __init__(self, native: NativeEngine) -> None:
        self.native = native
        self.kept: dict[Any, _Kept] = {}
