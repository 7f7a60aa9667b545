"""Collectives as custom calls of XLA: a program of JAX goes into the native library without entering Python.

Each call is an ordered effect, the one of jax.experimental.io_callback, so XLA runs them in the order of the source.
The handler is in librabit.so; it has the typed interface of XLA's FFI, which needs nothing of jaxlib to build.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from rabit._native import address_of_pointer, ffi
from rabit.engine.current import watch_default_engine
from rabit.engine.engine import Engine
from rabit.integrations.needed import needed
from rabit.types import Kind, ReduceOp

__all__ = ["Collective", "custom_call"]

_TARGET = "rabit"
# Smaller calls block: what a thread change costs is more than what the program could compute meanwhile.
_WAITS_BYTES = 64 << 10
# Their results take the memory of the operands.  XLA copies one before that is needed later.
_IN_PLACE = (Kind.ALLREDUCE, Kind.BROADCAST)


class Collective(NamedTuple):
    """What a call does.  name: equal on all ranks; of several arrays it is that of the group."""

    kind: Kind
    name: str
    op: ReduceOp = ReduceOp.SUM
    root: int = -1


def custom_call(
    collective: Collective, arrays: Sequence[Any], results: Sequence[Any]
) -> list[Any] | None:
    """The results of a collective in a program that is traced, as many as `arrays`.

    results: shapes and types.  None where JAX cannot do that: the caller calls back into Python.
    """
    primitive = _primitive()
    if primitive is None:
        return None
    calls = _calls()
    attributes = {
        "xla": np.int64(calls.address),
        "kind": np.int64(collective.kind),
        "reduce_op": np.int64(collective.op),
        "root": np.int64(collective.root),
        "waits": np.int64(
            sum(array.size * array.dtype.itemsize for array in arrays) <= _WAITS_BYTES
        ),
        "name": collective.name,
    }
    shapes = tuple((tuple(result.shape), np.dtype(result.dtype)) for result in results)
    return list(primitive.bind(*arrays, shapes=shapes, attributes=tuple(attributes.items())))


class _Calls:
    """What compiled programs name, and the engine that it leads to.  One in a process."""

    def __init__(self, engine: Engine) -> None:
        self._library = engine.native.library
        self._pointer = self._library.rabit_xla_open()
        if self._pointer == ffi.NULL:
            raise MemoryError("rabit.jax: memory is short")
        self.address = address_of_pointer(self._pointer)
        self._used: Any = None  # Its C object must be there as long as a call may be in it.
        self.use(engine)

    def use(self, engine: Engine | None) -> None:
        native = None if engine is None else engine.native
        self._library.rabit_xla_use(
            self._pointer, ffi.NULL if native is None else native.open_pointer()
        )
        self._used = native or self._used


@functools.cache
def _calls() -> _Calls:
    from rabit.engine.current import default_engine

    calls = _Calls(default_engine())
    watch_default_engine(calls.use)
    return calls


@functools.cache
def _primitive() -> Any:
    """The primitive of JAX; None where there is none, which is said once."""
    jax = needed("jax", "rabit.jax", "jax")
    if jax.default_backend() != "cpu":  # Its arrays are not in the memory of the host.
        return None
    try:
        return _make_primitive(jax)
    # Effects have no public name in JAX: another release may keep them elsewhere.
    except (ImportError, AttributeError, TypeError) as error:
        warnings.warn(
            f"rabit.jax: JAX {jax.__version__} has no ordered custom calls as rabit knows them ({error}). Collectives "
            "call back into Python, which takes longer. See docs/howto/jax.md.",
            RuntimeWarning,
            stacklevel=2,
        )
        return None


def _make_primitive(jax: Any) -> Any:
    if jax.__version_info__ < (0, 9):
        raise ImportError("effects inside of custom_vmap are lost before 0.9")
    from jax._src.callback import _OrderedIOEffect as effect
    from jax._src.core import abstract_token
    from jax.extend.core import Primitive
    from jax.interpreters import mlir

    handler = ffi.cast("uintptr_t", ffi.addressof(_library(), "rabit_xla_run"))
    jax.ffi.register_ffi_target(_TARGET, jax.ffi.pycapsule(int(handler)), platform="cpu")
    primitive = Primitive("rabit")
    primitive.multiple_results = True

    def abstract(*_: Any, shapes: Any, attributes: Any) -> Any:
        return [jax.core.ShapedArray(shape, dtype) for shape, dtype in shapes], {effect}

    def lower(context: Any, *operands: Any, shapes: Any, attributes: Any) -> Any:
        attributes = dict(attributes)
        with_token = context.replace(
            avals_in=(abstract_token, *context.avals_in),
            avals_out=(abstract_token, *context.avals_out),
        )
        in_place = range(1, 1 + len(operands)) if attributes["kind"] in _IN_PLACE else ()
        lowered = jax.ffi.ffi_lowering(
            _TARGET, has_side_effect=True, operand_output_aliases={i: i for i in in_place}
        )
        token = context.tokens_in.get(effect)
        token, *results = lowered(with_token, token, *operands, **attributes)
        context.set_tokens_out(context.tokens_in.update_tokens(mlir.TokenSet({effect: token})))
        return results

    primitive.def_effectful_abstract_eval(abstract)
    mlir.register_lowering(primitive, lower, platform="cpu")
    return primitive


def _library() -> Any:
    from rabit.engine.current import default_engine

    return default_engine().native.library
