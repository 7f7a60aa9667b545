"""The operations of rabit on MXNet arrays whose result this rank waits for."""

from __future__ import annotations

from typing import Any

import numpy as np

from rabit import TensorView
from rabit.framework import Adapter, Draft, Finish, Operations, output_array
from rabit_mxnet.arrays import (
    array_like,
    check,
    empty_like,
    may_be_blocked,
    private_copy,
    read_view,
    view,
    write_view,
)
from rabit_mxnet.loaded import mx

__all__ = ["WAITED", "put_back"]


class MXNetAdapter(Adapter[Any]):
    """Dense arrays of mxnet.nd and mxnet.np in the memory of the CPU."""

    def source(self, tensor: Any, draft: Draft) -> TensorView:
        what = f"the argument of {draft}"
        return read_view(check(tensor, what), what)

    def target(
        self, tensor: Any, draft: Draft, *, is_read: bool, any_order: bool = False
    ) -> tuple[TensorView, Finish]:
        what = f"the argument of {draft}"
        place = check(tensor, what)
        if may_be_blocked(tensor):
            place = private_copy(tensor) if is_read else empty_like(tensor, tensor.shape)
        return write_view(place, what), lambda _: put_back(place, tensor)

    def empty(
        self, tensor: Any, source: TensorView, shape: tuple[int, ...]
    ) -> tuple[Any, TensorView]:
        made = empty_like(tensor, shape)
        return made, view(made, "the result")

    def has_like(self, tensor: Any) -> bool:
        return False  # The extension module does not read arrays of MXNet.

    def like(self, tensor: Any, /) -> Any:
        return empty_like(tensor, tensor.shape)

    def result(self, tensor: Any) -> Finish:
        return lambda handle: array_like(output_array(handle), tensor)

    def splits(self, splits: Any, draft: Draft) -> Any:
        if splits is None:
            return None
        array = splits.asnumpy() if isinstance(splits, mx.nd.NDArray) else np.asarray(splits)
        if array.size and array.dtype.kind not in "iu":
            raise draft.refusal(
                f"splits are {array.reshape(-1).tolist()} of type {array.dtype}, and rows are counted in integers. "
                "Convert them, such as with splits.astype('int32')."
            )
        return array.reshape(-1).tolist()

    def received(self, splits: tuple[int, ...]) -> Any:
        return mx.nd.array(np.array(splits, np.int32), dtype="int32")


def put_back(result: Any, tensor: Any) -> Any:
    """Gives `tensor` the values of `result`, if that is another array; returns `tensor`."""
    if result is not tensor:
        with mx.autograd.pause():
            tensor[:] = result
    return tensor


WAITED = Operations(MXNetAdapter()).waiting()
