"""Collectives over Python objects.

Objects travel as pickles, and unpickling runs code: it happens only with bytes that came over the
engine, whose every connection is authenticated with the secret of the job.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from rabit.engine.current import engine_for_work
from rabit.engine.engine import Engine
from rabit.engine.process_set import ProcessSet, global_process_set
from rabit.errors import InvalidArgument
from rabit.ops.collectives import allgather, broadcast_
from rabit.ops.draft import Draft
from rabit.types import Kind

__all__ = ["allgather_object", "broadcast_object", "misfit", "to_pickle"]

# What a broadcast begins with: the length of the pickle, and as much of it as fits.  Most objects fit, and so does
# this into the negotiation of most jobs.
_HEAD_BYTES, _LENGTH_BYTES = 512, 8
# So deep a value is looked for that cannot be pickled: a dictionary may hold itself.
_DEPTH_MAX = 16


def broadcast_object(
    obj: Any = None,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    *,
    engine: Engine | None = None,
) -> Any:
    """The object that rank `root_rank` passed; `obj` of the others is ignored.

    obj: anything that pickle takes.  The root gets its own object back, not a copy.
    Blocks until every rank has called it.
    """
    engine = engine_for_work() if engine is None else engine
    head_name, data_name = (None, None) if name is None else (f"{name}.head", f"{name}.data")
    is_root = engine.rank == root_rank
    head = np.zeros(_HEAD_BYTES, np.uint8)
    data = head[:0]
    if is_root:
        data = _pickle(obj, Kind.BROADCAST, head_name, process_set, engine)
        head[:_LENGTH_BYTES] = np.frombuffer(data.size.to_bytes(_LENGTH_BYTES, "little"), np.uint8)
        first = data[: _HEAD_BYTES - _LENGTH_BYTES]
        head[_LENGTH_BYTES : _LENGTH_BYTES + first.size] = first
    broadcast_(head, root_rank, head_name, process_set, engine=engine)
    length = int.from_bytes(head[:_LENGTH_BYTES].tobytes(), "little")
    if length > _HEAD_BYTES - _LENGTH_BYTES:
        data = data if is_root else np.empty(length, np.uint8)
        broadcast_(data, root_rank, data_name, process_set, engine=engine)
    elif not is_root:
        data = head[_LENGTH_BYTES : _LENGTH_BYTES + length]
    return obj if is_root else pickle.loads(data.tobytes())


def allgather_object(
    obj: Any,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    *,
    engine: Engine | None = None,
) -> list[Any]:
    """The list of the objects that the ranks passed, in rank order; of ranks that have joined there are none.

    obj: anything that pickle takes; objects of the ranks may differ in size and type.
    Blocks until every rank has called it.
    """
    engine = engine_for_work() if engine is None else engine
    data_name = None if name is None else f"{name}.data"
    data = _pickle(obj, Kind.ALLGATHER, data_name, process_set, engine)
    everything = allgather(data, data_name, process_set, engine=engine)
    stream = io.BytesIO(everything.tobytes())
    objects = []
    while stream.tell() < everything.size:  # a pickle says where it ends
        objects.append(pickle.load(stream))
    return objects


def to_pickle(obj: Any) -> bytes:
    """The pickle of `obj`.  Raises InvalidArgument with the place in `obj` of what has none."""
    try:
        return pickle.dumps(obj, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        raise InvalidArgument(
            f"{misfit('the object', obj, pickle.dumps)} cannot be pickled: {error}. Send what it is made of."
        ) from error


def misfit(name: str, value: Any, take: Callable[[Any], object]) -> str:
    """What `take` raises for in `value`, called `name`, as in "the value ['a'][3] of type generator".

    It is looked for in dictionaries and lists, and they in them.
    """
    path = ""
    for _ in range(_DEPTH_MAX):
        items = list(_items(value))
        found = next((item for item in items if not _takes(take, item[1])), None)
        if found is None:
            break
        path += f"[{found[0]!r}]"
        value = found[1]
    return f"{name}{path and ' at '}{path} of type {type(value).__name__}"


def _items(value: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(value, dict):
        return value.items()
    return enumerate(value) if isinstance(value, list | tuple) else ()


def _takes(take: Callable[[Any], object], value: Any) -> bool:
    try:
        take(value)
    except Exception:
        return False
    return True


def _pickle(
    obj: Any, kind: Kind, name: str | None, process_set: ProcessSet, engine: Engine
) -> np.ndarray[Any, Any]:
    """The bytes of `obj`.  If there are none, the others hear of it where they wait for this collective."""
    try:
        data = to_pickle(obj)
    except InvalidArgument as error:
        with Draft.of(engine, kind, name, process_set) as draft:
            raise draft.refusal(str(error)) from error.__cause__
    return np.frombuffer(bytearray(data), np.uint8)
