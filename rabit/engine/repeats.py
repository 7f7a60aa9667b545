"""Blocking calls that a program makes again: their C form is kept by their name.

A training loop reduces the same tensors under the same names in every step.  What is left to do then
is to see that they are the same, and one call of the extension module (native/python).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rabit._native import address_of_pointer
from rabit.engine.handle import SLICE_MS, Handle
from rabit.engine.native_engine import NativeEngine
from rabit.engine.request import Request, new_struct

__all__ = ["Repeats"]

_KEPT_MAX = 1024


class _Kept:
    """One request in place of an array, in its C form, which is only read."""

    __slots__ = ("address", "arguments", "dtype", "owned", "shape")

    def __init__(self, request: Request, arguments: tuple[Any, ...], array: np.ndarray[Any, Any]):
        struct, borrowed = new_struct(request)
        self.owned = (struct, borrowed)
        self.address = address_of_pointer(struct)
        self.arguments = arguments
        self.dtype, self.shape = array.dtype, array.shape


class Repeats:
    """The requests of one engine that may come again.  Thread-safe."""

    __slots__ = ("_kept", "_native")

    def __init__(self, native: NativeEngine) -> None:
        self._native = native
        self._kept: dict[str, _Kept] = {}

    def run(self, name: str, tensor: Any, arguments: tuple[Any, ...]) -> bool:
        """Runs what was kept under `name`, in place of `tensor`; False if the two do not fit.

        Raises what went wrong with the operation.
        """
        kept = self._kept.get(name)
        if (
            kept is None
            or type(tensor) is not np.ndarray
            or tensor.dtype is not kept.dtype
            or tensor.shape != kept.shape
            or arguments != kept.arguments
        ):
            return False
        native = self._native
        if native.orphans:
            native.sweep()
        try:
            failed = native.run_again(
                native.run_address,
                native.release_address,
                native.work_address,
                kept.address,
                tensor,
                SLICE_MS,
            )
        except (ValueError, TypeError, BufferError):
            return False
        if failed is not None:
            code, value = failed
            if not value:
                native.fail(code)
            Handle(native, value, name, (kept, tensor), None, code).wait()
        return True

    def keep(self, request: Request, arguments: tuple[Any, ...], tensor: Any) -> None:
        """Lets `request` run again on arrays like `tensor`, which it has run on, in place.

        arguments: of the public function; with equal ones it makes the same request.
        """
        may_repeat = type(tensor) is np.ndarray and request.group == 0
        if not may_repeat or self._native.run_again is None:
            return
        if len(self._kept) >= _KEPT_MAX:
            self._kept.clear()
        self._kept[request.name] = _Kept(request, arguments, tensor)
