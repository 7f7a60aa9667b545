"""Operations on several backends, submitted by every rank in an order of its own.

Arguments: seed, operations, backends with commas.  Prints "wrong N of M" at the end.
Operations of backend nccl are on tensors of the emulated device.
"""

from __future__ import annotations

import collections
import os
import sys
from typing import Any

import numpy as np
from device_calls import Device, OnDevice
from mixing_program import WINDOW, Call, call_of, orders, prepare

import rabit

BACKENDS = tuple(sys.argv[3].split(","))


def submit(call: Call, device: Device | None) -> Any:
    """Something with the method `result`."""
    if device is not None and call.backend == "nccl":
        return OnDevice(device, rabit.default_engine(), call)
    mine, name, backend = call.input(rabit.rank()), call.name, call.backend
    if call.kind == "allreduce":
        return rabit.allreduce_async(mine, name=name, op=rabit.Sum, backend=backend)
    if call.kind == "broadcast":
        return rabit.broadcast_async(mine, call.root(rabit.size()), name, backend=backend)
    run = rabit.allgather_async if call.is_gather else rabit.alltoall_async
    return run(mine, name=name, backend=backend)


def check_statistics(device: Device | None) -> None:
    statistics = rabit.default_engine().statistics()
    assert statistics["backends"].keys() >= set(BACKENDS), statistics["backends"]
    classes = statistics["lane_classes"]
    assert all(classes[name]["issued"] > 0 for name in BACKENDS), classes
    assert not any(each["queued"] for each in classes.values()), classes
    if "nccl/hierarchical" in os.environ.get("RABIT_ROUTE", ""):
        assert any(each["backend"] == "nccl.hierarchical" for each in statistics["routes"])
    if device is not None:
        counts = device.counts()
        assert counts["kernels"] == counts["exchanged"] > 0, counts
        assert counts["violations"] == 0, counts


def main() -> None:
    seed, operations = int(sys.argv[1]), int(sys.argv[2])
    prepare()
    device = Device() if "nccl" in BACKENDS else None
    rabit.init()
    pending: collections.deque[tuple[Any, Call]] = collections.deque()
    wrong = 0

    def finish_one() -> bool:
        handle, call = pending.popleft()
        return not call.is_right(np.asarray(handle.result()), rabit.size())

    # A rank's window always holds what the others wait for: they differ within a block.
    for numbers in orders(seed, operations, rabit.rank()):
        for number in numbers:
            call = call_of(seed, number, BACKENDS, rabit.size())
            pending.append((submit(call, device), call))
        while len(pending) > WINDOW:
            wrong += finish_one()
    while pending:
        wrong += finish_one()
    check_statistics(device)
    print(f"wrong {wrong} of {operations}", flush=True)
    rabit.shutdown()


if __name__ == "__main__":
    main()
