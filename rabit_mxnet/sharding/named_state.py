"""The state of a trainer's optimizer by name, whole or in parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import prod
from typing import Any

import numpy as np

import rabit
from rabit import InvalidArgument, ProcessSet
from rabit.checkpoint import Part
from rabit.sharding import Interval, joined
from rabit_mxnet.loaded import mx

__all__ = ["load_state", "saved_state"]

# Of the optimizer and of its learning-rate scheduler: what a step reads or changes.
_OPTIONS = ("lr", "wd", "num_update", "begin_num_update")

Parameters = Mapping[str, tuple[int, Any]]  # index and parameter, by name
Owned = Callable[[str], Interval | None]  # None: all elements


def saved_state(updater: Any, parameters: Parameters, owned: Owned) -> dict[str, Any]:
    """See DistributedTrainer.state_dict."""
    optimizer = updater.optimizer
    counts = optimizer._index_update_count
    return {
        "state": {
            name: dict(_saved(updater, index, parameter, owned(name)))
            for name, (index, parameter) in parameters.items()
            if index in counts
        },
        "counts": {
            name: counts[index] for name, (index, _) in parameters.items() if index in counts
        },
        "options": _plain(optimizer, _OPTIONS),
        "scheduler": _plain(
            optimizer.lr_scheduler, getattr(optimizer.lr_scheduler, "__dict__", ())
        ),
    }


def load_state(
    saved: Mapping[str, Any],
    updater: Any,
    parameters: Parameters,
    owned: Owned,
    process_set: ProcessSet,
    label: str,
) -> None:
    """See DistributedTrainer.load_state_dict."""
    unknown = sorted(set(saved["state"]) - set(parameters))
    if unknown:
        raise InvalidArgument(
            f"load_state_dict on rank {rabit.rank()}: the state has {', '.join(unknown[:5])}, which this trainer does "
            f"not train. It trains {', '.join(list(parameters)[:5])}. Build the same model that was saved"
        )
    optimizer = updater.optimizer
    for name, values in saved["state"].items():
        index, parameter = parameters[name]
        interval = owned(name)
        found = {
            key: _elements(value, f"{label}load.{name}.{key}", f"{key!r} of {name!r}", process_set)
            for key, value in values.items()
        }
        if interval is not None and not interval.length:
            continue
        state = _fresh(optimizer, index, parameter, interval)
        for key, leaf in _leaves(state):
            start, length = (0, leaf.size) if interval is None else interval
            leaf[:] = mx.nd.array(
                found[key][start : start + length].reshape(leaf.shape), dtype=leaf.dtype
            )
        updater.states[index], updater.states_synced[index] = state, True
    for name, count in saved["counts"].items():
        optimizer._index_update_count[parameters[name][0]] = int(count)
    vars(optimizer).update(saved["options"])
    if optimizer.lr_scheduler is not None:
        vars(optimizer.lr_scheduler).update(saved["scheduler"])


def _saved(
    updater: Any, index: int, parameter: Any, interval: Interval | None
) -> Iterator[tuple[str, Any]]:
    has_own = interval is None or interval.length > 0
    # A rank that owns nothing has no state of its own to look at.
    state = (
        updater.states[index] if has_own else _fresh(updater.optimizer, index, parameter, interval)
    )
    for key, leaf in _leaves(state):
        values = leaf.asnumpy().reshape(-1) if has_own else np.empty(0, leaf.dtype)
        if interval is None:
            yield key, values
        else:
            yield key, Part(values, interval.start if has_own else 0, prod(parameter.shape))


def _fresh(optimizer: Any, index: int, parameter: Any, interval: Interval | None) -> Any:
    """The state that the optimizer makes for a parameter, or for a slice of it."""
    weight = parameter.data().as_nd_ndarray()
    if interval is not None:
        weight = mx.nd.zeros((max(interval.length, 1),), dtype=weight.dtype)
    return optimizer.create_state_multi_precision(index, weight)


def _leaves(state: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """The arrays of a state, which is an array, None, or a sequence of states; by their places, such as "1.0"."""
    if isinstance(state, (list, tuple)):
        for place, value in enumerate(state):
            yield from _leaves(value, f"{key}.{place}" if key else str(place))
    elif state is not None:
        yield key or "0", state


def _elements(value: Any, label: str, what: str, process_set: ProcessSet) -> Any:
    """All elements of an array that was saved whole or in parts."""
    return joined(None, label, what, value, process_set) if isinstance(value, Part) else value


def _plain(holder: Any, names: Any) -> dict[str, Any]:
    """The attributes that are numbers, or lists of numbers."""
    found = {name: getattr(holder, name) for name in names if hasattr(holder, name)}
    return {name: value for name, value in found.items() if _is_plain(value)}


def _is_plain(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return isinstance(value, (int, float)) or value is None
