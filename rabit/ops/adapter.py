"""Adapter: what the operations need to know of a framework's tensors.

The operations of rabit/ops/operations.py are written once over it; a package for a framework brings its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from rabit.engine.handle import Finish, Handle, output_array
from rabit.engine.tensor import TensorView, address_of, numpy_dtype, view_input, view_output
from rabit.types import Kind, ReduceOp

if TYPE_CHECKING:
    from rabit.engine.group_handle import GroupHandle
    from rabit.engine.process_set import ProcessSet
    from rabit.ops.draft import Draft

__all__ = ["ARRAYS", "Adapter", "ArrayAdapter"]

Tensor = TypeVar("Tensor")


class Adapter(ABC, Generic[Tensor]):
    """One framework.  Its functions are called while the request of a call is made; what they raise is reported
    to the other ranks, and `draft` names the operation in messages."""

    # The class of the handle of one operation whose result is known before.
    handle: type[Handle] = Handle

    def name(self, kind: Kind, name: str) -> str:
        """What the engine calls an operation of the caller's `name`."""
        return f"{kind}.{name}"

    def op(self, op: Any, draft: Draft) -> ReduceOp:
        """The reduction that the caller means.  Raises ValueError for what is not one."""
        return ReduceOp(op)

    @abstractmethod
    def source(self, tensor: Tensor, draft: Draft) -> TensorView:
        """Checks `tensor`, and returns its values in row-major memory for reading: a copy where it lies otherwise."""

    @abstractmethod
    def target(
        self, tensor: Tensor, draft: Draft, *, is_read: bool, any_order: bool = False
    ) -> tuple[TensorView, Finish]:
        """Checks `tensor`, and returns memory for its new values and what puts them there and returns `tensor`.

        is_read: the memory has the values of `tensor` before.  any_order: it may have another order of axes.
        """

    @abstractmethod
    def empty(
        self, tensor: Tensor, source: TensorView, shape: tuple[int, ...]
    ) -> tuple[Tensor, TensorView]:
        """A new tensor of this shape and of the type of `tensor`, whose `source` it was, and its memory."""

    def has_like(self, tensor: Tensor) -> bool:
        """Whether `like` can make one."""
        return True

    @abstractmethod
    def like(self, tensor: Tensor, /) -> Tensor:
        """A new tensor of the shape and type of `tensor`, of whose kind one has been checked before."""

    @abstractmethod
    def result(self, tensor: Tensor) -> Finish:
        """Makes of a finished handle the engine's output as a tensor of the type of `tensor`."""

    def composed(
        self,
        draft: Draft,
        given: Any,
        process_set: ProcessSet,
        arguments: tuple[Any, ...],
        *,
        is_in_place: bool,
    ) -> Any:
        """The handle of a call that is made of several operations, which it has started; None: the call is one.

        given: the tensor, or the list of them where `draft.count` is their number.
        """
        return None

    def splits(self, splits: Any, draft: Draft) -> Any:
        """Rows for each rank as a sequence of integers, where the framework has a type of its own for them."""
        return splits

    def received(self, splits: tuple[int, ...]) -> Any:
        """The rows that came from each rank, as an alltoall returns them."""
        return list(splits)

    def started(self, handle: Handle | GroupHandle) -> Any:
        """The handle that the caller gets."""
        return handle


class ArrayAdapter(Adapter[Any]):
    """NumPy arrays, and whatever has DLPack or the buffer protocol."""

    def name(self, kind: Kind, name: str) -> str:
        return name

    def source(self, tensor: Any, draft: Draft) -> TensorView:
        return view_input(tensor, draft)

    def target(
        self, tensor: Any, draft: Draft, *, is_read: bool, any_order: bool = False
    ) -> tuple[TensorView, Finish]:
        return view_output(tensor, draft), lambda _: tensor

    def empty(
        self, tensor: Any, source: TensorView, shape: tuple[int, ...]
    ) -> tuple[Any, TensorView]:
        dtype = tensor.dtype if isinstance(tensor, np.ndarray) else numpy_dtype(source.dtype)
        array = np.empty(shape, dtype)
        return array, TensorView(address_of(array), shape, source.dtype, keepalive=array)

    def has_like(self, tensor: Any) -> bool:
        return type(tensor) is np.ndarray

    def like(self, tensor: Any, /) -> Any:
        return np.empty(tensor.shape, tensor.dtype)

    def result(self, tensor: Any) -> Finish:
        # The types of ml_dtypes come as their bits in unsigned integers.
        if not isinstance(tensor, np.ndarray) or tensor.dtype.isbuiltin != 2:
            return output_array
        dtype = tensor.dtype

        def finish(handle: Handle) -> Any:
            array = output_array(handle)
            return None if array is None else array.view(dtype)

        return finish


ARRAYS = ArrayAdapter()
