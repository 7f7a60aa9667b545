"""run() starts operations that become ready together, in MXNet's dependency engine or by itself."""

from __future__ import annotations

from collections.abc import Sequence

import rabit
from rabit import Handle, Request
from rabit_mxnet import dependency_engine
from rabit_mxnet.arrays import read_view, write_view
from rabit_mxnet.operation import Operation


def run(operations: Sequence[Operation], priority: int) -> None:
    """Runs operations so that whoever reads a target afterwards sees the result.

    priority: larger runs first.
    """
    if dependency_engine.is_usable():
        dependency_engine.push(operations, priority)
    else:
        run_and_wait(operations, priority)


def run_and_wait(operations: Sequence[Operation], priority: int) -> None:
    """Waits for the arrays, runs the operations, and waits for the results."""
    requests = []
    for each in operations:
        target = write_view(each.target, each.what)
        source = target if each.source is each.target else read_view(each.source, each.what)
        requests.append(
            Request(each.kind, each.name, source, target, priority=priority, **each.fields)
        )
    wait_all(rabit.default_engine().submit(requests))


def wait_all(handles: Sequence[Handle]) -> None:
    """Waits for every handle, then raises the first error, if any."""
    rabit.GroupHandle(handles).wait()
