"""A backend that fails ends its own operations; those of other backends continue, on all ranks."""

from __future__ import annotations

import sys

import pytest

# Rank 0 stops or kills the only server, between two operations.  The name of a sum is its own, so each
# rank hears of the failure by the same operation.
SCRIPT = """
import os, pathlib, signal, sys
import numpy as np, rabit
rabit.init()
rank, size = rabit.rank(), rabit.size()
pair = rabit.add_process_set(rabit.ProcessSet([0, 1], backend="ps"))
mine = np.random.default_rng(rank).standard_normal(200_000).astype(np.float32)
def total(name, **where):
    return rabit.allreduce(mine, name=name, op=rabit.Sum, **where)
before = total("before")
def server():
    for entry in pathlib.Path("/proc").iterdir():
        try:
            parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
            command = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if int(parent) == os.getppid() and command.endswith(b"rabit.server\\0"):
            return int(entry.name)
    raise SystemExit("there is no server")
rabit.barrier()  # all have it
if rank == 0:
    os.kill(server(), getattr(signal, sys.argv[1]))
rabit.barrier()
others = [rabit.allreduce_async(np.full(9, i, np.int64), name=f"o{i}", op=rabit.Sum, backend="builtin")
          for i in range(20)]
def fails(name, **where):
    try:
        total(name, **where)
    except rabit.PeerLost as error:
        assert error.rank == size, error.rank
        for part in (f"'{name}' on rank {rank}: backend 'ps' has failed: ", "server 0 on host"):
            assert part in str(error), str(error)
        return
    raise SystemExit(f"{name} has not failed")
for attempt in range(2):
    try:
        again = total(f"attempt {attempt}")
        succeeded = 1
    except rabit.PeerLost:
        succeeded = 0
    if rabit.allreduce(np.array([succeeded]), name="all have it", op=rabit.Min, backend="builtin")[0]:
        break
assert attempt == 1 and np.allclose(again, before, rtol=1e-4, atol=1e-4)
for i, each in enumerate(others):
    assert (rabit.synchronize(each) == size * i).all()
fails("named", backend="ps")
if rank < 2:
    fails("of a set", process_set=pair)
for step in range(3):
    np.testing.assert_allclose(total(f"after{step}"), before, rtol=1e-4, atol=1e-4)
late = rabit.add_process_set([0, size - 1])
if rank in (0, size - 1):
    assert (rabit.allreduce(np.ones(3), name="late", op=rabit.Sum, process_set=late) == 2).all()
seen = rabit.statistics()
assert "server 0 on host" in seen["failed_backends"]["ps"], seen["failed_backends"]
assert {each["backend"] for each in seen["routes"]} == {"builtin", "ps"}
rabit.shutdown()
print("continued", flush=True)
"""


@pytest.mark.parametrize("how", ["SIGSTOP", "SIGKILL"])
def test_operations_of_other_backends_go_on_without_the_servers(rabitrun, how):
    environ = {"RABIT_HEARTBEAT_TIMEOUT": "1s"}

    job = rabitrun(
        "-np", 3, "-s", 1, "--grace-time", "1s", sys.executable, "-c", SCRIPT, how, environ=environ
    )

    assert job.status == 0, job.err
    assert job.out.count("continued") == 3
    assert job.err.count("Operations that name this backend fail from here on") == 1
    killed = "rabitrun: server 0 (host localhost) was killed by SIGKILL (signal 9); "
    assert job.err.count(killed) == (how == "SIGKILL")
    job.assert_nothing_is_left()
