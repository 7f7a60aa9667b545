"""LightGBM that trains on all ranks of a job, under any launcher.

LightGBM's own distributed learners ask for two collectives and take them from whoever offers them
(LGBM_NetworkInitWithFunctions).  A reduce-scatter adds up packed records by a function of LightGBM, which we do not
look into: each rank receives the blocks that are its own and adds them in the order of ranks, so that every rank
decides from the same bits and all models are identical.
Source: A Communication-Efficient Parallel Algorithm for Decision Tree (Meng et al., NIPS 2016).
"""

from __future__ import annotations

import contextlib
import ctypes
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar, cast

import numpy as np

from rabit.engine.current import engine_for_work
from rabit.engine.engine import Engine
from rabit.errors import InvalidArgument
from rabit.integrations.needed import needed
from rabit.ops.collectives import allgather, alltoall
from rabit.ops.objects import broadcast_object
from rabit.session import init, rank, size
from rabit.threads import SLICE_S, start_thread

__all__ = ["fit", "train"]

T = TypeVar("T")

_LEARNERS = ("data", "voting")  # LightGBM refuses "feature" in programs, for its command line alone
_OTHER_NAMES = ("tree", "tree_type", "tree_learner_type")  # of tree_learner

_Counts = ctypes.POINTER(ctypes.c_int32)
_REDUCE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int32)
_REDUCE_SCATTER = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_int32, ctypes.c_int, _Counts, _Counts, ctypes.c_int, ctypes.c_void_p,
    ctypes.c_int32, ctypes.POINTER(_REDUCE),
)  # fmt: skip
_ALLGATHER = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_int32, _Counts, _Counts, ctypes.c_int, ctypes.c_void_p, ctypes.c_int32
)


def train(params: Mapping[str, Any], train_set: Any, *args: Any, **kwargs: Any) -> Any:
    """As `lightgbm.train`, by all ranks together; returns the Booster, the same on every rank.

    params: `tree_learner` is "data" unless "voting" is given.  train_set: a Dataset of this rank's own rows.  The rest
    is lightgbm.train's.
    Calls `rabit.init()`.  Blocks until every rank has called it with the same parameters.
    Raises PeerLost if a rank died, InvalidArgument for a learner that trains on one machine.
    """
    lightgbm = needed("lightgbm", "rabit.lightgbm.train", "lightgbm")
    init()
    found = _parameters(dict(params), size())
    booster = _in_network(lambda: lightgbm.train(found, train_set, *args, **kwargs))
    if found.get("tree_learner") == "voting" and not kwargs.get("keep_training_booster"):
        # The value of a tree's root, which predictions do not read, is that of a rank's own rows there.
        booster.model_from_string(broadcast_object(booster.model_to_string(), 0))
    return booster


def fit(estimator: Any, *args: Any, **kwargs: Any) -> Any:
    """As `estimator.fit(...)` of an LGBMRegressor, LGBMClassifier or LGBMRanker, by all ranks together.

    estimator: gets the parameters of a distributed training, and is returned.  The rest are the arguments of `fit`,
    with this rank's own rows; each class has to be among the rows of each rank.
    Blocks, calls and raises as `train` does.
    """
    needed("lightgbm", "rabit.lightgbm.fit", "lightgbm")
    init()
    given = {name: value for name, value in estimator.get_params().items() if value is not None}
    estimator.set_params(**_parameters(given, size()))
    return _in_network(lambda: estimator.fit(*args, **kwargs))


def _in_network(work: Callable[[], T]) -> T:
    """What `work` returns, while LightGBM's learners train on all ranks.  Blocks.

    It runs in a thread of its own, as LightGBM has a network for each thread.  A collective that fails cannot raise
    through C++, and with made-up data LightGBM would corrupt its memory: the thread stays in that call, for the rest of
    the process, and the error is raised here.
    """
    if size() == 1:
        return work()
    library = needed("lightgbm", "rabit.lightgbm", "lightgbm").basic
    outcome: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()
    collectives = _Collectives(engine_for_work(), lambda error: outcome.put((None, error)))

    def run() -> None:
        try:
            functions = (ctypes.cast(function, ctypes.c_void_p) for function in collectives.functions)
            library._safe_call(
                library._LIB.LGBM_NetworkInitWithFunctions(size(), rank(), *functions)
            )
            try:
                outcome.put((work(), None))
            finally:
                library._safe_call(library._LIB.LGBM_NetworkFree())
        except BaseException as error:
            outcome.put((None, error))

    start_thread(run, "rabit-lightgbm")
    while True:
        with contextlib.suppress(queue.Empty):
            result, error = outcome.get(timeout=SLICE_S)
            break
    if error is not None:
        raise error
    return cast(T, result)


def _parameters(params: dict[str, Any], ranks: int) -> dict[str, Any]:
    """`params` with the number of machines; with one LightGBM would train on each by itself."""
    if ranks == 1:
        return params
    for name in ("machines", "workers", "nodes", "machine_list_filename", "machine_list_file", "machine_list", "mlist"):
        if params.get(name):
            raise InvalidArgument(
                f"rabit.lightgbm: {name}={params[name]!r} is for LightGBM's own sockets, and the ranks of this job are "
                "its machines. Leave it out."
            )
    given = next((params.pop(name) for name in ("tree_learner", *_OTHER_NAMES) if name in params), "data")
    learner = str(given).removesuffix("_parallel")
    if learner not in _LEARNERS:
        raise InvalidArgument(
            f"rabit.lightgbm: tree_learner={given!r} does not train on several machines from Python, and this job has "
            f"{ranks} ranks. Use one of {', '.join(_LEARNERS)}."
        )
    return {**params, "tree_learner": learner, "num_machines": ranks, "pre_partition": True}


class _Collectives:
    """The two functions that LightGBM calls, in its thread.  fail: takes an error; the call then does not return."""

    def __init__(self, engine: Engine, fail: Callable[[BaseException], None]) -> None:
        self._engine, self._fail = engine, fail
        # LightGBM keeps pointers: they live as long as this does.
        self.functions = (_REDUCE_SCATTER(self._reduce_scatter), _ALLGATHER(self._allgather))

    def _reduce_scatter(
        self, source: int, source_bytes: int, type_bytes: int, starts: Any, lengths: Any, blocks: int,
        target: int, target_bytes: int, reducer: Any,
    ) -> None:  # fmt: skip
        counts = lengths[:blocks]
        mine = counts[self._engine.rank]
        with self._not_raising():
            # The blocks follow each other.
            received, _ = alltoall(
                _view(source, sum(counts)), counts, "rabit.lightgbm.reduce_scatter", engine=self._engine
            )
            first = received.ctypes.data
            ctypes.memmove(target, first, mine)
            for part in range(first + mine, first + received.size, max(1, mine)):
                reducer[0](part, target, type_bytes, mine)

    def _allgather(
        self, source: int, source_bytes: int, starts: Any, lengths: Any, blocks: int,
        target: int, target_bytes: int,
    ) -> None:  # fmt: skip
        with self._not_raising():
            mine = _view(source, source_bytes)
            found = allgather(mine, "rabit.lightgbm.allgather", engine=self._engine)
            at = found.ctypes.data
            for start, count in zip(starts[:blocks], lengths[:blocks], strict=True):
                ctypes.memmove(target + start, at, count)
                at += count

    @contextlib.contextmanager
    def _not_raising(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self._fail(error)
            threading.Event().wait()  # Without a deadline: there is nothing to continue to; see _in_network.


def _view(address: int, count: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The bytes there, without a copy."""
    if not count:
        return np.empty(0, np.uint8)
    memory = (ctypes.c_uint8 * count).from_address(address)
    return np.frombuffer(memoryview(memory), np.uint8)
