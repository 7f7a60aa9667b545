"""A plan of hosts with several ranks each: shared memory inside a host and TCP between hosts, in one exchange."""

import json
import sys

from rabit.planner import Plan, Topology
from rabit.planner.document import described

TRAIN = """
import json, os, pathlib, sys
import numpy as np

rank = int(os.environ["RABIT_RANK"])
os.environ["RABIT_HOST_KEY"] = f"host{rank // 2}"
import rabit

rabit.init()
values = np.arange(100_003, dtype=np.float32) % 101 * (rank + 1)
total = rabit.allreduce(values, op=rabit.Sum, name="sum")
from_3 = rabit.broadcast(values, 3, name="from 3")
found = rabit.statistics()
routes = sorted({route["kind"] for route in found["routes"] if route["algorithm"] == "plan"})
names = found["backend_details"]["builtin"]["transport"]["name"]
sums = bool((total == np.arange(100_003, dtype=np.float32) % 101 * 21).all())
copies = bool((from_3 == np.arange(100_003, dtype=np.float32) % 101 * 4).all())
(pathlib.Path(sys.argv[1]) / f"{rank}.json").write_text(json.dumps([sums, copies, routes, names]))
"""


def test_ranks_of_a_host_share_memory_in_a_plan(start, tmp_path):
    hosts = ["host0", "host1", "host2"]
    links = [(host, "switch", 5 if host == "host0" else 10) for host in hosts]
    both_ways = [*links, *((end, begin, capacity) for begin, end, capacity in links)]
    path = tmp_path / "plan"
    path.write_text(json.dumps(described(Plan(Topology.of(hosts, both_ways, ["switch"])))))
    script = tmp_path / "train.py"
    script.write_text(TRAIN)

    job = start("-np", 6, "--plan", path, sys.executable, script, tmp_path)

    assert job.wait() == 0, job.out + job.err
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(6)]
    assert found == [[True, True, ["allreduce", "broadcast"], "shm+tcp"]] * 6
