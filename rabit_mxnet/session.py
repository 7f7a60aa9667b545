"""init and shutdown, with what MXNet needs around them."""

from __future__ import annotations

import sys
from typing import Any

import rabit
from rabit_mxnet import backward, dependency_engine
from rabit_mxnet.library import check_version
from rabit_mxnet.loaded import mx, notice

_has_said: list[str] = []


def init(comm: Any = None, process_sets: Any = None, *, config: rabit.Config | None = None) -> None:
    """Starts the default engine and connects it to the other ranks.  Does nothing if it runs.

    comm: None, or an mpi4py communicator whose processes are the ranks.
    process_sets: sets to register, the same on every rank.
    Blocks until every rank has called it.
    """
    check_version()
    rabit.init(comm, process_sets, config=config)
    for text in (notice(), backward.CHANGED if rabit.size() > 1 else None):
        if text is not None and text not in _has_said and rabit.rank() == 0:
            _has_said.append(text)
            print(f"rabit_mxnet: {text}", file=sys.stderr)


def shutdown(timeout: float = 30.0) -> None:
    """Lets MXNet finish what it has, then stops the default engine.

    Waits at most `timeout` seconds for the other ranks to do so.  Does nothing if none runs.
    """
    if rabit.is_initialized():
        mx.nd.waitall()
    rabit.shutdown(timeout)
    dependency_engine.forget_engines()
