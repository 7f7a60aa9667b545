"""Routes between the backends: rules take operations to MPI and back, with the same results (MCR-DL-A 2)."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.mpi import PURE_MPI

JOB = Path(__file__).parent / "conformance_job.py"

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(240)]

SCRIPT = """
import sys, numpy as np, rabit
rabit.init()
rank, size = rabit.rank(), rabit.size()
for count in (1000, 100_000):
    found = rabit.allreduce(np.full(count, rank + 1, np.float32), name=f"r{count}", op=rabit.Sum)
    assert found.tolist() == [size * (size + 1) / 2] * count
    parts = np.arange(size, dtype=np.int32).repeat(count)
    assert rabit.alltoall(parts, name=f"a{count}").tolist() == [rank] * (count * size)
    array = np.full(count, rank, np.int64)
    assert rabit.broadcast(array, 1, name=f"b{count}").tolist() == [1] * count
pair = rabit.add_process_set(rabit.ProcessSet(range(size), backend="mpi"))
rabit.allgather(np.ones(300_000), name="g", process_set=pair)
if rank == 0:
    for each in rabit.statistics()["routes"]:
        print(each["kind"], each["backend"], each["algorithm"], each["row"], flush=True)
rabit.shutdown()
"""


def test_rules_mix_the_backends_by_kind_and_size(mpi, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    route = "alltoall:*:mpi/library;allreduce:<64K:mpi/library;allreduce:builtin/ring;broadcast:mpi/chain"

    ended = mpi.run(3, script, environ={"RABIT_BACKEND": "builtin,mpi", "RABIT_ROUTE": route})

    ended.assert_ended_well()
    for line in (
        "alltoall mpi library route_rule",
        "allreduce mpi library route_rule",
        "allreduce builtin ring route_rule",
        "broadcast mpi.messages chain route_rule",
    ):
        assert line in ended.output, ended.output
    assert "alltoall builtin" not in ended.output


@pytest.mark.slow
@pytest.mark.parametrize(
    "more", [pytest.param({}, id="shared memory"), pytest.param(PURE_MPI, id="mpi")]
)
def test_every_operation_is_right_when_a_rule_takes_it_to_the_library(mpi, more):
    environ = {"RABIT_BACKEND": "builtin,mpi", "RABIT_ROUTE": "*:mpi/library", **more}

    ended = mpi.run(3, JOB, "mpi", environ=environ, timeout=200)

    ended.assert_ended_well()
    assert ended.output.count("checked ") == 3


def test_a_rule_without_the_backend_says_how_to_get_it(mpi, tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import rabit\nrabit.init()\n")

    ended = mpi.run(2, script, environ={"RABIT_ROUTE": "alltoall:mpi"})

    assert "add it with RABIT_BACKEND=builtin,mpi" in ended.errors + ended.output


def test_a_job_of_the_builtin_backend_never_loads_mpi(mpi, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, numpy as np, rabit\n"
        "rabit.init()\n"
        "rabit.allreduce(np.ones(5000), name='x')\n"
        "print('loaded', 'mpi4py' in sys.modules, 'libmpi' in open('/proc/self/maps').read())\n"
    )

    ended = mpi.run(2, script, environ={"RABIT_ROUTE": "*:builtin"})

    ended.assert_ended_well()
    assert ended.output.count("loaded False False") == 2
