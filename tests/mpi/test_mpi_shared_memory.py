"""When ranks of one host do without MPI, and what the statistics say of it."""

from __future__ import annotations

import json

import pytest
from support.mpi import PURE_MPI

pytestmark = [pytest.mark.mpi]

# Argument 1: ranks that count as those of one host; 2: whether rank 1 wants MPI everywhere.
SCRIPT = """
import json, os, sys
import numpy as np
from mpi4py import MPI
from support.mpi import pretend_hosts
import rabit

rank = MPI.COMM_WORLD.rank
pretend_hosts(int(sys.argv[1]))
if sys.argv[2] == "1" and rank == 1:
    os.environ["RABIT_MPI_SHM"] = "0"
rabit.init()
pair = rabit.add_process_set([0, 1])
sizes = {"few": 10, "many": 300_000}
for name, count in sizes.items():
    total = rabit.allreduce(np.full(count, 2.0**rank), op=rabit.Sum, name=name)
    assert (total == 2.0 ** rabit.size() - 1).all()
    if rank < 2:
        total = rabit.allreduce(
            np.full(count, rank + 1.0), op=rabit.Sum, name=f"pair.{name}", process_set=pair
        )
        assert (total == 3).all()
rabit.barrier()
if rank == 0:
    print("details", json.dumps(rabit.default_engine().statistics()["backend_details"]), flush=True)
rabit.shutdown()
"""


@pytest.fixture
def details(mpi, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)

    def run(size, ranks_per_host, environ=None, is_mixed=False):
        environ = {"RABIT_BACKEND": "mpi", **(environ or {})}
        ended = mpi.run(size, script, ranks_per_host, int(is_mixed), environ=environ)
        ended.assert_ended_well()
        lines = ended.output.splitlines()
        return json.loads(
            next(line for line in lines if line.startswith("details"))[len("details") :]
        )

    return run


def algorithms(part):
    return {name: row["calls"] for name, row in part["algorithms"].items()}


def test_one_host_needs_no_mpi(details):
    found = details(2, 2)

    assert found["mpi"]["inside_host"] == "shm"
    assert found["mpi"]["calls"] == {}
    assert found["mpi"]["messages"]["algorithms"] == {}
    reductions = algorithms(found["builtin"])
    assert sum(calls for name, calls in reductions.items() if name.startswith("allreduce/")) == 4


def test_between_hosts_the_messages_are_those_of_mpi(details):
    found = details(4, 2)

    mpi = found["mpi"]
    assert mpi["calls"]["allreduce"]["calls"] == 1  # the small one of all ranks
    assert algorithms(mpi["across"]) == {"allreduce/hierarchical": 1}
    assert mpi["across"]["transport"]["name"] == "shm+mpi"
    assert mpi["messages"]["algorithms"] == {}
    reductions = algorithms(found["builtin"])  # those of the pair on one host
    assert sum(calls for name, calls in reductions.items() if name.startswith("allreduce/")) == 2


def test_sums_in_rank_order_across_hosts_are_made_of_messages(details):
    found = details(4, 2, {"RABIT_DETERMINISTIC": "1"})

    assert algorithms(found["mpi"]["across"]) == {}
    assert sum(algorithms(found["mpi"]["messages"]).values()) == 2


@pytest.mark.parametrize(
    "environ",
    [
        PURE_MPI,
        {"RABIT_TRANSPORT": "tcp"},
        {"RABIT_MPI_COLLECTIVES": "library"},
        {"RABIT_MPI_COLLECTIVES": "messages"},
    ],
)
def test_everything_goes_through_mpi_where_it_is_asked_for(details, environ):
    found = details(2, 2, environ)

    assert found["mpi"]["inside_host"] == "mpi"
    calls = sum(row["calls"] for row in found["mpi"]["calls"].values())
    assert calls + sum(algorithms(found["mpi"]["messages"]).values()) >= 4
    assert algorithms(found["builtin"]) == {}


def test_one_rank_that_wants_mpi_everywhere_decides_for_all(details):
    found = details(2, 2, is_mixed=True)

    assert found["mpi"]["inside_host"] == "mpi"
    assert algorithms(found["builtin"]) == {}
