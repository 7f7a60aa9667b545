"""Collectives of all ranks inside of JAX programs: under jit, grad, vmap and scan.

Each is one ordered effect of the program, so that XLA runs them on every rank in the order of the source: on the CPU a
call of XLA's into the native library (rabit/integrations/xla.py), else a call back into Python.  Gradients are those of
the sum of the losses of all ranks: the transposes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rabit.engine.tensor import TensorView
from rabit.errors import InvalidArgument
from rabit.integrations.needed import needed
from rabit.integrations.xla import Collective, custom_call
from rabit.ops.collectives import allgather as _allgather
from rabit.ops.collectives import allreduce_, grouped_allreduce_
from rabit.ops.collectives import alltoall as _alltoall
from rabit.ops.collectives import broadcast as _broadcast
from rabit.ops.collectives import reducescatter as _reducescatter
from rabit.session import rank, size
from rabit.types import Kind, ReduceOp

__all__ = ["DistributedOptimizer", "allgather", "allreduce", "alltoall", "broadcast"]

_LINEAR = (ReduceOp.SUM, ReduceOp.AVERAGE)


def allreduce(tree: Any, op: ReduceOp = ReduceOp.AVERAGE) -> Any:
    """Combines each array of `tree` with those of the other ranks, element by element; the same on all ranks.

    tree: an array or any pytree of arrays, whose shapes and types are equal on all ranks; it is one operation.
    Returns the same tree.  Blocks its place in the program until every rank has come there.
    Gradient: with Sum the sum, with Average the mean of the cotangents; other operations have none.
    Raises, as JAX wraps it, Mismatch if shapes or types differ between ranks, PeerLost if a rank died.
    """
    jax = needed("jax", "rabit.jax.allreduce", "jax")
    leaves, form = jax.tree_util.tree_flatten(tree)
    arrays = tuple(jax.numpy.asarray(leaf) for leaf in leaves)
    return jax.tree_util.tree_unflatten(form, _reduction(ReduceOp(op))(arrays)) if arrays else tree


def allgather(array: Any) -> Any:
    """Concatenates `array` of every rank along axis 0, in the order of ranks.

    array: at least one axis; the same shape and type on all ranks, as the shape of the result is a part of the program.
    Returns shape (size * n, *rest).  Blocks as `allreduce` does.
    Gradient: each rank gets the sum over ranks of its part of the cotangents.
    """
    return _gathering(size())(_rows(array, "allgather"))


def broadcast(array: Any, root_rank: int) -> Any:
    """The values of rank `root_rank`, on all ranks.

    array: the same shape and type on all ranks.  Blocks as `allreduce` does.
    Gradient: the root gets the sum of the cotangents of all ranks, the others zeros.
    """
    jax = needed("jax", "rabit.jax.broadcast", "jax")
    if not 0 <= root_rank < size():
        raise InvalidArgument(
            f"rabit.jax.broadcast: root_rank is {root_rank}, and the ranks are 0 to {size() - 1}. Correct it."
        )
    return _broadcasting(int(root_rank))(jax.numpy.asarray(array))


def alltoall(array: Any) -> Any:
    """Sends part r of `array` to rank r and returns the parts that came, in the order of ranks.

    array: shape (n, *rest), with n a multiple of the number of ranks; the same on all ranks.
    Returns the same shape.  Blocks as `allreduce` does.  Gradient: alltoall of the cotangents.
    """
    found = _rows(array, "alltoall")
    if found.shape[0] % size():
        raise InvalidArgument(
            f"rabit.jax.alltoall: axis 0 has {found.shape[0]} rows, which {size()} ranks cannot divide. Pad it to a "
            "multiple of the number of ranks."
        )
    return _exchanging()(found)


def DistributedOptimizer(optimizer: Any, op: ReduceOp = ReduceOp.AVERAGE) -> Any:
    """An optax GradientTransformation that combines gradients over all ranks, then does as `optimizer`.

    optimizer: of optax.  All gradients travel as one operation.  Does not block itself; its `update` does.
    """
    optax = needed("optax", "rabit.jax.DistributedOptimizer", "jax")

    def update(updates: Any, state: Any, params: Any = None, **more: Any) -> Any:
        return optimizer.update(allreduce(updates, op), state, params, **more)

    # More arguments pass through, as optax.chain needs to know.
    if isinstance(optimizer, optax.GradientTransformationExtraArgs):
        return optax.GradientTransformationExtraArgs(optimizer.init, update)
    return optax.GradientTransformation(optimizer.init, update)


def _rows(array: Any, name: str) -> Any:
    jax = needed("jax", f"rabit.jax.{name}", "jax")
    found = jax.numpy.asarray(array)
    if not found.ndim:
        raise InvalidArgument(f"rabit.jax.{name}: a scalar has no rows. Reshape it to (1,).")
    return found


# How each is differentiated and mapped.  One function of JAX for each set of constants, made at its first use.


@functools.cache
def _reduction(op: ReduceOp) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    """Of a tuple of arrays; an axis that vmap adds is one axis more."""

    def run(
        collective: Collective, *arrays: np.ndarray[Any, Any]
    ) -> tuple[np.ndarray[Any, Any], ...]:
        found = [np.array(array) for array in arrays]  # JAX's memory must not change
        views = [_as_tensor(array) for array in found]
        if len(found) == 1:
            allreduce_(views[0], op=op, name=collective.name)
        else:
            grouped_allreduce_(views, op=op, name=collective.name)
        return tuple(found)

    def call(arrays: tuple[Any, ...]) -> tuple[Any, ...]:
        collective = Collective(Kind.ALLREDUCE, _name("allreduce", arrays, op.name), op)
        return tuple(_called(collective, run, arrays, arrays))

    def transpose(_: None, cotangents: Any) -> Any:
        if op not in _LINEAR:
            raise InvalidArgument(
                f"rabit.jax.allreduce: {op.name} has no gradient. Use Sum or Average, or jax.lax.stop_gradient."
            )
        return (function(cotangents),)

    def batched(axis_size: int, in_batched: Any, arrays: Any) -> Any:
        return mapped(arrays), in_batched[0]

    function, mapped = _differentiable(call, transpose, batched)
    return function


@functools.cache
def _gathering(ranks: int) -> Callable[[Any], Any]:
    """Of a job of so many ranks."""

    def run(collective: Collective, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return _as_array(_allgather(_as_tensor(array), collective.name), array)

    def call(array: Any) -> Any:
        collective = Collective(Kind.ALLGATHER, _name("allgather", [array]))
        return _called_once(collective, run, array, ranks * array.shape[0])

    def transpose(_: None, cotangent: Any) -> Any:
        return (_scattering(ranks)(cotangent),)

    function, mapped = _differentiable(call, transpose, _behind_rows(lambda array: mapped(array)))
    return function


@functools.cache
def _scattering(ranks: int) -> Callable[[Any], Any]:
    """The sum over ranks of this rank's part, the transpose of a gathering."""

    def run(collective: Collective, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return _as_array(
            _reducescatter(_as_tensor(array), op=ReduceOp.SUM, name=collective.name), array
        )

    def call(array: Any) -> Any:
        collective = Collective(Kind.REDUCESCATTER, _name("reducescatter", [array]))
        return _called_once(collective, run, array, array.shape[0] // ranks)

    def transpose(_: None, cotangent: Any) -> Any:
        return (_gathering(ranks)(cotangent),)

    function, mapped = _differentiable(call, transpose, _behind_rows(lambda array: mapped(array)))
    return function


@functools.cache
def _broadcasting(root: int) -> Callable[[Any], Any]:
    def run(collective: Collective, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return _as_array(_broadcast(_as_tensor(array), root, collective.name), array)

    def call(array: Any) -> Any:
        collective = Collective(Kind.BROADCAST, _name("broadcast", [array], str(root)), root=root)
        return _called_once(collective, run, array)

    def transpose(_: None, cotangent: Any) -> Any:
        (total,) = _reduction(ReduceOp.SUM)((cotangent,))
        return (total if rank() == root else total * 0,)

    function, mapped = _differentiable(
        call, transpose, lambda count, in_batched, array: (mapped(array), True)
    )
    return function


@functools.cache
def _exchanging() -> Callable[[Any], Any]:
    def run(collective: Collective, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return _as_array(_alltoall(_as_tensor(array), name=collective.name), array)

    def call(array: Any) -> Any:
        return _called_once(Collective(Kind.ALLTOALL, _name("alltoall", [array])), run, array)

    def transpose(_: None, cotangent: Any) -> Any:
        return (function(cotangent),)

    function, mapped = _differentiable(call, transpose, _behind_rows(lambda array: mapped(array)))
    return function


def _differentiable(
    call: Callable[[Any], Any], transpose: Callable[[None, Any], Any], batched: Callable[..., Any]
) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """`call` with its gradient, and under it with its rule for vmap, which ordered effects do not have themselves."""
    jax = needed("jax", "rabit.jax", "jax")
    mapped = jax.custom_batching.custom_vmap(
        jax.jit(call)
    )  # jit: a primitive of ours runs in programs only
    mapped.def_vmap(batched)
    function = jax.custom_vjp(lambda arrays: mapped(arrays))
    function.defvjp(lambda arrays: (mapped(arrays), None), transpose)
    return function, mapped


def _behind_rows(mapped: Callable[[Any], Any]) -> Callable[..., Any]:
    """The rule for vmap of what works along axis 0: the added axis, which is in front, becomes the second."""
    jax = needed("jax", "rabit.jax", "jax")

    def batched(axis_size: int, in_batched: Any, array: Any) -> Any:
        found = mapped(jax.numpy.moveaxis(array, 0, 1))
        return jax.numpy.moveaxis(found, 1, 0), True

    return batched


def _called(
    collective: Collective, run: Callable[..., Any], results: Sequence[Any], arrays: Sequence[Any]
) -> Sequence[Any]:
    """The collective as an ordered effect of the program.

    results: arrays of the shapes and types of what it gives.  run: does it with NumPy arrays, where XLA cannot.
    """
    found = custom_call(collective, arrays, results)
    if found is not None:
        return found
    jax = needed("jax", "rabit.jax", "jax")
    shapes = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in results]

    def on_host(*given: Any) -> Any:
        made = run(collective, *(np.asarray(array) for array in given))
        return list(made) if isinstance(made, tuple) else [made]

    found = jax.experimental.io_callback(on_host, shapes, *arrays, ordered=True)
    return list(found)


def _called_once(
    collective: Collective, run: Callable[..., Any], array: Any, rows: int | None = None
) -> Any:
    """The same of one array.  rows: of the result; None: as many."""
    jax = needed("jax", "rabit.jax", "jax")
    shape = array.shape if rows is None else (rows, *array.shape[1:])
    return _called(collective, run, [jax.ShapeDtypeStruct(shape, array.dtype)], [array])[0]


def _name(kind: str, arrays: Sequence[Any], more: str = "") -> str:
    """One for each form of a call: those of one form come one after the other, as effects are ordered."""
    first = arrays[0]
    form = f"{first.dtype}[{','.join(map(str, first.shape))}]" + (
        f"*{len(arrays)}" if len(arrays) > 1 else ""
    )
    return f"rabit.jax.{kind}.{form}{more}"


def _as_tensor(array: np.ndarray[Any, Any]) -> Any:
    """`array` for an operation; bfloat16, which NumPy does not know, by its bits."""
    return TensorView.bfloat16(array.view(np.uint16)) if array.dtype.name == "bfloat16" else array


def _as_array(result: Any, like: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    found = np.asarray(result)
    return found if found.dtype == like.dtype else found.view(like.dtype)
