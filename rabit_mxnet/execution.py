"""run() starts operations that become ready together, in MXNet's dependency engine or by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import rabit
from rabit_mxnet import dependency_engine
from rabit_mxnet.arrays import read_view, write_view
from rabit_mxnet.operation import Operation


def run(operations: Sequence[Operation], priority: int) -> None:
    """Runs operations so that a later reader of a target sees the result.

    priority: larger runs first.
    """
    if dependency_engine.is_usable():
        dependency_engine.push(operations, priority)
    else:
        run_and_wait(operations, priority)


def run_and_wait(operations: Sequence[Operation], priority: int) -> None:
    """Waits for the arrays, runs the operations, and waits for the results."""
    requests = []
    for operation in operations:
        target = write_view(operation.target, operation.what)
        in_place = operation.source is operation.target
        source = target if in_place else read_view(operation.source, operation.what)
        requests.append(replace(operation.request, input=source, output=target, priority=priority))
    rabit.GroupHandle(rabit.default_engine().submit(requests)).wait()
