"""XGBoost that trains on all ranks of a job.

XGBoost takes collectives from its own communicator alone, which its documents call rabit: another library of that name.
This starts it: rank 0 runs its tracker, and every rank joins under its own number.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from rabit.integrations.needed import needed
from rabit.ops.objects import broadcast_object
from rabit.rendezvous.addresses import loopback_address
from rabit.rendezvous.own_address import reachable_address
from rabit.session import init, local_size, rank, size

__all__ = ["communicator"]

_TIMEOUT_S = 60


@contextlib.contextmanager
def communicator(timeout: int = _TIMEOUT_S) -> Iterator[None]:
    """Inside of the block `xgboost.train` and its estimators train on the rows of all ranks.

        with rabit.xgboost.communicator():
            booster = xgboost.train(params, xgboost.DMatrix(rows[mine], values[mine]), 20)

    timeout: in seconds, for the ranks to join, and for XGBoost to notice that one is lost.
    Calls `rabit.init()`.  Blocks until every rank has come, and at its end until every rank has left.
    """
    xgboost = needed("xgboost", "rabit.xgboost.communicator", "xgboost")
    collective = needed("xgboost.collective", "rabit.xgboost.communicator", "xgboost")
    init()
    if size() == 1:
        yield
        return
    tracker = None
    arguments: dict[str, str | int] = {}
    if rank() == 0:
        from xgboost.tracker import RabitTracker

        is_one_host = local_size() == size()
        address = loopback_address() if is_one_host else reachable_address({})
        tracker = RabitTracker(size(), address, sortby="task", timeout=timeout)
        tracker.start()
        arguments = dict(tracker.worker_args())
    arguments = broadcast_object(arguments, 0)
    # Of its own numbers too: models and rows are those of our ranks.
    with collective.CommunicatorContext(**arguments, dmlc_task_id=f"{rank():08d}", dmlc_timeout=timeout):
        assert xgboost.collective.get_world_size() == size()
        yield
    if tracker is not None:
        tracker.wait_for()
