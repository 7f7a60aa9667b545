"""Collectives over Python objects.

Objects travel as pickles, and unpickling runs code: it happens only with bytes that came over the
engine, whose every connection is authenticated with the secret of the job.
"""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np

from rabit.engine.engine import Engine
from rabit.engine.process_set import ProcessSet, global_process_set
from rabit.errors import InvalidArgument
from rabit.ops.reductions import Call, allgather, broadcast_
from rabit.types import Kind

__all__ = ["allgather_object", "broadcast_object"]


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
    call = Call(engine, Kind.BROADCAST, name, process_set, 0)
    is_root = call.engine.rank == root_rank
    data = _pickle(obj, str(call)) if is_root else np.empty(0, np.uint8)
    length = np.array([data.size], np.int64)
    broadcast_(length, root_rank, f"{call.name}.size", process_set, engine=call.engine)
    if not is_root:
        data = np.empty(int(length[0]), np.uint8)
    broadcast_(data, root_rank, f"{call.name}.data", process_set, engine=call.engine)
    return obj if is_root else pickle.loads(data.tobytes())


def allgather_object(
    obj: Any,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    *,
    engine: Engine | None = None,
) -> list[Any]:
    """The list of the objects that the ranks passed, in rank order.

    obj: anything that pickle takes; objects of the ranks may differ in size and type.
    Blocks until every rank has called it.
    """
    call = Call(engine, Kind.ALLGATHER, name, process_set, 0)
    data = _pickle(obj, str(call))
    sizes = allgather([data.size], f"{call.name}.size", process_set, engine=call.engine)
    everything = allgather(data, f"{call.name}.data", process_set, engine=call.engine)
    ends = np.cumsum(sizes)
    return [
        pickle.loads(everything[end - size : end].tobytes())
        for size, end in zip(sizes.tolist(), ends.tolist(), strict=True)
    ]


def _pickle(obj: Any, what: str) -> np.ndarray[Any, Any]:
    try:
        data = pickle.dumps(obj, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        raise InvalidArgument(
            f"{what}: the object of type {type(obj).__name__} cannot be pickled: {error}. "
            "Send what it is made of."
        ) from error
    return np.frombuffer(bytearray(data), np.uint8)
