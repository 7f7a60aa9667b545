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
    found = rabit.default_engine().statistics()
    details = {"routes": found["routes"], **found["backend_details"]}
    print("details", json.dumps(details), flush=True)
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


def exchanges(found, backend):
    """How many exchanges a backend ran, by "kind/algorithm"."""
    return {
        f"{route['kind']}/{route['algorithm']}": route["exchanges"]
        for route in found["routes"]
        if route["backend"] == backend
    }


def test_one_host_needs_no_mpi(details):
    found = details(2, 2)

    assert found["mpi"]["inside_host"] == "shm"
    assert exchanges(found, "mpi") == exchanges(found, "mpi.messages") == {}
    reductions = exchanges(found, "builtin")
    assert sum(calls for name, calls in reductions.items() if name.startswith("allreduce/")) == 4


def test_between_hosts_the_messages_are_those_of_mpi(details):
    found = details(4, 2)

    assert exchanges(found, "mpi")["allreduce/library"] == 1  # the small one of all ranks
    assert exchanges(found, "mpi.across") == {"allreduce/hierarchical": 1}
    assert found["mpi.across"]["transport"]["name"] == "shm+mpi"
    assert exchanges(found, "mpi.messages") == {}
    reductions = exchanges(found, "builtin")  # those of the pair on one host
    assert sum(calls for name, calls in reductions.items() if name.startswith("allreduce/")) == 2


def test_sums_in_rank_order_across_hosts_are_made_of_messages(details):
    found = details(4, 2, {"RABIT_DETERMINISTIC": "1"})

    assert exchanges(found, "mpi.across") == {}
    assert sum(exchanges(found, "mpi.messages").values()) == 2


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
    through_mpi = {**exchanges(found, "mpi"), **exchanges(found, "mpi.messages")}
    assert sum(through_mpi.values()) >= 4
    assert exchanges(found, "builtin") == {}


def test_one_rank_that_wants_mpi_everywhere_decides_for_all(details):
    found = details(2, 2, is_mixed=True)

    assert found["mpi"]["inside_host"] == "mpi"
    assert exchanges(found, "builtin") == {}
