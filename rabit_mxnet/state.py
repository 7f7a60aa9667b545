"""Every rank starts from the same parameters."""

from __future__ import annotations

import types
from typing import Any

import rabit
from rabit import InvalidArgument
from rabit_mxnet.loaded import mx
from rabit_mxnet.ops import broadcast_


def broadcast_parameters(params: Any, root_rank: int = 0, prefix: str | None = None) -> None:
    """Overwrites parameters on every rank with those of `root_rank`.  Blocks.

    params: a dict of arrays or Parameters (Module.get_params(), Block.collect_params()).
    prefix: put before the names, to tell models apart.
    A Parameter whose initialisation is deferred is broadcast when its shape is known, which must
    happen on every rank.
    Raises Mismatch if the ranks have other names, shapes or dtypes.
    """
    if not isinstance(params, (dict, mx.gluon.ParameterDict)):
        raise InvalidArgument(
            f"broadcast_parameters takes a dict or a ParameterDict, not {type(params).__name__}. "
            "Pass block.collect_params(), or module.get_params()[0]."
        )
    if prefix is not None and not isinstance(prefix, str):
        raise InvalidArgument(f"prefix is {prefix!r}, and a string is expected. Leave it out.")
    if rabit.size() == 1:
        return
    ready, deferred = _split(params, prefix or "")
    _check_names_everywhere([name for name, _ in ready], [name for name, _ in deferred], root_rank)
    for name, parameter in deferred:
        _broadcast_after_initialisation(parameter, root_rank, name)
    for name, value in ready:
        broadcast_(value, root_rank, name=f"parameter.{name}")
    for _, value in ready:
        value.wait_to_read()


def _split(params: Any, prefix: str) -> tuple[list[tuple[str, Any]], list[tuple[str, Any]]]:
    """(name, array) of what has values, and (name, Parameter) of what has none yet."""
    ready, deferred = [], []
    for key, value in sorted(params.items()):
        name = prefix + str(key)
        if not isinstance(value, mx.gluon.Parameter):
            ready.append((name, value))
            continue
        try:
            ready += [(name, array) for array in _only_one(value.list_data(), name)]
        except mx.gluon.parameter.DeferredInitializationError:
            deferred.append((name, value))
    return ready, deferred


def _only_one(arrays: list[Any], name: str) -> list[Any]:
    if len(arrays) > 1:
        raise rabit.Unsupported(
            f"parameter '{name}' has copies on {len(arrays)} contexts, and a rank works on one. "
            "Start one rank for each context."
        )
    return arrays


def _check_names_everywhere(ready: list[str], deferred: list[str], root_rank: int) -> None:
    """Names that only some ranks have would wait for ever; say which, and where."""
    mine = (ready, deferred)
    roots = rabit.broadcast_object(mine, root_rank, "mxnet.parameter_names")
    differ = [sorted(set(a) ^ set(b)) for a, b in zip(mine, roots, strict=True)]
    every = rabit.allgather_object(differ, "mxnet.parameter_name_check")
    for rank, (names, late) in enumerate(every):
        if names or late:
            raise rabit.Mismatch(
                f"broadcast_parameters: rank {rank} and rank {root_rank} do not both have the "
                f"parameters {names[:5]}, or only one has deferred {late[:5]}. Build and initialise "
                "the model the same way on every rank.",
                rank,
            )


def _broadcast_after_initialisation(parameter: Any, root_rank: int, name: str) -> None:
    initialise = parameter._init_impl

    def initialise_and_broadcast(self: Any, *args: Any, **kwargs: Any) -> None:
        initialise(*args, **kwargs)
        broadcast_(self.data(), root_rank, name=f"parameter.{name}")

    parameter._init_impl = types.MethodType(initialise_and_broadcast, parameter)
