"""Summation servers: rabitrun -s, and what becomes of a job whose servers or workers end."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from rabit.errors import InvalidArgument
from rabit.launch.hosts import parse_hosts
from rabit.launch.plan import make_plan, with_servers
from rabit.launch.roster import Roster
from rabit.launch.server_losses import ServerLosses

CONFORMANCE = Path(__file__).parents[1] / "mpi" / "conformance_job.py"

SUMS = """
import numpy as np, rabit
from rabit import ProcessSet
pair = ProcessSet([0, 2], backend="ps")
rabit.init(process_sets=[pair])
rank, size = rabit.rank(), rabit.size()
mine = [np.random.default_rng(each).standard_normal(300_007).astype(np.float32) for each in range(size)]
expected = mine[0].copy()
for each in mine[1:]:
    expected += each
def check(result, wanted, what):
    assert result.tobytes() == wanted.tobytes(), f"rank {rank}: {what} differs"
check(rabit.allreduce(mine[rank], op=rabit.Sum, name="all"), expected, "the sum")
half = [each.astype(np.float16) for each in mine]
wanted = sum(each.astype(np.float32) for each in half).astype(np.float16)
check(rabit.allreduce(half[rank], op=rabit.Sum, name="half"), wanted, "float16")
if rank in (0, 2):
    both = rabit.allreduce(mine[rank], op=rabit.Sum, name="pair", process_set=pair)
    check(both, mine[0] + mine[2], "the pair")
handles = [rabit.allreduce_async(np.full(100_000, rank + i, np.float64), op=rabit.Sum, name=f"a{i}")
           for i in range(20)]
for i, handle in enumerate(handles):
    result = rabit.synchronize(handle)
    check(result, np.full(100_000, size * i + sum(range(size)), np.float64), f"a{i}")
check(rabit.broadcast(mine[rank], root_rank=1, name="root"), mine[1], "the broadcast")
own = rabit.allreduce(mine[rank], op=rabit.Sum, name="own", backend="builtin")
np.testing.assert_allclose(own, expected, rtol=1e-3, atol=1e-4)
routes = {(each["kind"], each["backend"], each["row"]) for each in rabit.statistics()["routes"]}
print("routes", sorted(routes), flush=True)
rabit.shutdown()
rabit.init()
check(rabit.allreduce(mine[rank], op=rabit.Sum, name="again"), expected, "the second job")
print("done", flush=True)
"""

# A sum that a server has given back: by then it has said what it serves.
SERVED_SUM = """
import numpy as np, rabit
rabit.init()
rabit.allreduce(np.ones(300_007, np.float32), name="served")
assert rabit.statistics()["backends"]["ps"]["tensors"] == 1
"""

ALONE = """
import numpy as np, rabit
rabit.init()
print(rabit.allreduce(np.ones(1000, np.float32), name="x", op=rabit.Sum).sum(), flush=True)
print({name: each["tensors"] for name, each in rabit.statistics()["backends"].items()}, flush=True)
"""

ROUTED = """
import numpy as np, rabit
rabit.init()
for count in (1000, 300_000):
    rabit.allreduce(np.ones(count, np.float32), name=f"x{count}")
print({each["backend"]: each["bytes"] for each in rabit.statistics()["routes"]}, flush=True)
"""

# Every rank is the launcher of a job of its own, with the flags that are given.
NESTED = """
import subprocess, sys
inner = "import numpy as np, rabit; rabit.init(); rabit.allreduce(np.ones(100_000, np.float32), name='x'); " \\
    "print('inner', rabit.size(), {each['backend'] for each in rabit.statistics()['routes']}, flush=True)"
words = [sys.executable, "-m", "rabit.launch", "-np", "2", *sys.argv[1:], sys.executable, "-c", inner]
sys.exit(subprocess.run(words, timeout=60).returncode)
"""

# Rank 0 does `how` to server 1 after some steps.
BROKEN = """
import os, pathlib, signal, sys
import numpy as np
import rabit
how = sys.argv[1]
rabit.init()
def server(number):
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
            environ = (entry / "environ").read_bytes().split(b"\\0")
            command = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        is_server = int(parent) == os.getppid() and command.endswith(b"rabit.server\\0")
        if is_server and f"RABIT_RANK={number}".encode() in environ:
            return int(entry.name)
    raise SystemExit("there is no such server")
for step in range(400):
    if step == 5 and rabit.rank() == 0:
        if how == "worker":
            os.kill(os.getpid(), signal.SIGKILL)
        os.kill(server(1), getattr(signal, how))
    rabit.allreduce(np.ones(300_000, np.float32), name="x")
"""

# Server 0 is killed, and the engine after that has the others.
AGAIN = BROKEN.split("for step in range")[0] + """
mine = np.random.default_rng(rabit.rank()).standard_normal(200_000).astype(np.float32)
before = rabit.allreduce(mine, name="x", op=rabit.Sum)
if rabit.rank() == 0:
    os.kill(server(0), signal.SIGKILL)
for step in range(20):
    assert rabit.allreduce(mine, name="x", op=rabit.Sum).tobytes() == before.tobytes()
rabit.shutdown()
try:
    rabit.init()
    after = rabit.allreduce(mine, name="x", op=rabit.Sum)
    assert after.tobytes() == before.tobytes(), "the second engine sums something else"
    seen = rabit.statistics()["backend_details"]["ps"]["servers"]
    print("left", [(each["number"], each["is_lost"]) for each in seen], flush=True)
except rabit.RabitError as error:
    print("error", type(error).__name__, error.rank, error, flush=True)
"""


# A server is stopped between two engines.
SILENT = BROKEN.split("for step in range")[0] + """
rabit.allreduce(np.ones(1000, np.float32), name="x")
rank = rabit.rank()
rabit.shutdown()
if rank == 0:
    os.kill(server(1), signal.SIGSTOP)
try:
    rabit.init()
except rabit.PeerLost as error:
    print("error", error.rank, error, flush=True)
"""


def test_servers_sum_in_rank_order_and_serve_job_after_job(rabitrun):
    job = rabitrun("-np", 3, "-s", 2, sys.executable, "-c", SUMS)

    assert job.status == 0, job.err
    assert job.out.count("done") == 3
    assert "('allreduce', 'ps', 'only')" in job.out
    assert "('allreduce', 'builtin'," in job.out
    assert "('broadcast', 'builtin', 'emulated')" in job.out
    job.assert_nothing_is_left()


def test_every_collective_type_and_size_with_servers(rabitrun):
    environ = {"PYTHONPATH": str(CONFORMANCE.parents[1])}

    job = rabitrun("-np", 3, "-s", 2, sys.executable, CONFORMANCE, "ps", environ=environ)

    assert job.status == 0, job.err
    assert job.out.count("checked ") == 3


def test_a_rule_takes_large_tensors_to_the_servers(rabitrun):
    environ = {"RABIT_SERVERS": "1", "RABIT_ROUTE": "allreduce:>=1M:ps"}

    job = rabitrun("-np", 2, sys.executable, "-c", ROUTED, environ=environ)

    assert job.status == 0, job.err
    assert job.out.count("'ps': 1200000") == 2
    assert job.out.count("'builtin': 4000") == 2


@pytest.mark.parametrize(("flags", "backend"), [([], "builtin"), (["-s", "1"], "ps")])
def test_a_job_inside_of_a_rank_has_only_servers_of_its_own(rabitrun, flags, backend):
    job = rabitrun("-np", 2, "-s", 1, sys.executable, "-c", NESTED, *flags)

    assert job.status == 0, job.err
    assert job.out.count(f"inner 2 {{'{backend}'}}") == 4
    job.assert_nothing_is_left()


def test_the_server_that_is_killed_is_the_cause(rabitrun):
    job = rabitrun("-np", 2, "-s", 2, sys.executable, "-c", BROKEN, "SIGKILL")

    assert job.status == 128 + signal.SIGKILL
    assert "rabitrun: server 1 (host localhost) was killed by SIGKILL" in job.err
    job.assert_nothing_is_left()


def test_a_server_that_hangs_is_named_by_the_workers(rabitrun):
    environ = {"RABIT_HEARTBEAT_TIMEOUT": "1s"}

    job = rabitrun("-np", 2, "-s", 2, sys.executable, "-c", BROKEN, "SIGSTOP", environ=environ)

    assert job.status == 1
    assert "PeerLost" in job.err
    assert "server 1 on host" in job.err
    assert "it has been silent for" in job.err
    job.assert_nothing_is_left()


@pytest.mark.parametrize("how", ["SIGKILL", "SIGSTOP"])
def test_with_replicas_the_job_goes_on_without_a_server(rabitrun, how):
    environ = {"RABIT_HEARTBEAT_TIMEOUT": "1s"}

    job = rabitrun(
        "-np", 2, "-s", 2, "--server-replicas", 2, "--grace-time", "1s",
        sys.executable, "-c", BROKEN, how, environ=environ,
    )  # fmt: skip

    assert job.status == 0, job.err
    killed = "rabitrun: server 1 (host localhost) was killed by SIGKILL (signal 9); the job continues with 1 of 2"
    assert job.err.count(killed) == (how == "SIGKILL")
    job.assert_nothing_is_left()


def test_a_server_that_hangs_before_an_engine_begins_is_named_at_once(rabitrun):
    environ = {"RABIT_HEARTBEAT_TIMEOUT": "1s", "RABIT_CONNECT_TIMEOUT": "10m"}

    job = rabitrun(
        "-np", 2, "-s", 2, "--grace-time", "1s", sys.executable, "-c", SILENT, "SIGSTOP", environ=environ
    )

    assert "error 3 server 1 of 2 runs, and has not answered within 1000 ms (RABIT_HEARTBEAT_TIMEOUT)" in job.out
    job.assert_nothing_is_left()


@pytest.mark.parametrize("servers", [2, 3])
def test_an_engine_after_a_lost_server_has_the_others(rabitrun, servers):
    job = rabitrun("-np", 2, "-s", servers, "--server-replicas", 2, sys.executable, "-c", AGAIN, "SIGKILL")

    assert job.status == 0, job.err
    left = [(number, False) for number in range(1, servers)]
    assert job.out.count(f"left {left}") == 2, job.out
    job.assert_nothing_is_left()


def test_the_loss_of_all_servers_is_an_error(rabitrun):
    script = BROKEN.replace("os.kill(server(1)", "os.kill(server(0), 9), os.kill(server(1)")

    job = rabitrun(
        "-np", 2, "-s", 2, "--server-replicas", 2, sys.executable, "-c", script, "SIGKILL"
    )

    assert job.status == 128 + signal.SIGKILL
    assert "was killed by SIGKILL (signal 9); the job continues with 1 of 2 servers" in job.err
    job.assert_nothing_is_left()


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_worker_that_is_killed_leaves_no_server_behind(rabitrun, replicas):
    job = rabitrun(
        "-np", 2, "-s", 2, "--server-replicas", replicas, sys.executable, "-c", BROKEN, "worker"
    )

    assert job.status == 128 + signal.SIGKILL
    assert "rabitrun: rank 0 of 2" in job.err
    job.assert_nothing_is_left()


def test_ctrl_c_ends_servers_as_well(start):
    job = start("-np", 2, "-s", 1, "sh", "-c", "echo up; exec sleep 60")
    job.wait_for_line("up", 2)

    job.send(signal.SIGINT)

    assert job.wait() == 128 + signal.SIGINT
    job.assert_nothing_is_left()


def test_servers_tell_what_they_do_under_their_own_name(rabitrun, tmp_path):
    job = rabitrun(
        "-np", 2, "-s", 1, "--log-level", "info", "--output-filename", tmp_path,
        sys.executable, "-c", SERVED_SUM,
    )  # fmt: skip

    assert job.status == 0, job.err
    assert "[server 0] rabit: info: server 0 serves 2 workers" in job.err
    assert "serves 2 workers" in (tmp_path / "server.0" / "stderr").read_text()


@pytest.mark.parametrize(
    ("flags", "environ", "text"),
    [
        (["-np", "1", "-s", "2"], {}, "2 summation servers for one rank"),
        (["-np", "2", "-s", "3", "--server-hosts", "a:2"], {}, "--server-hosts has room for 2"),
        (["-np", "2", "-s", "2", "--launcher", "mpi"], {}, "leaves them to mpiexec"),
        (["-np", "2", "-s", "many"], {}, "--servers is 'many'"),
        (["-np", "2", "-s", "1", "--server-replicas", "2"], {}, "the job has 1 summation servers"),
        (["-np", "2"], {"RABIT_SERVER_REPLICAS": "2"}, "the job has 0 summation servers"),
        (["-np", "2", "-s", "4", "--server-replicas", "3"], {}, "--server-replicas is 3, which is not valid"),
        (["-np", "2", "-s", "1", "--ps-staleness", "8"], {}, "is 8 for all ranks (from: --ps-staleness), and"),
        (["-np", "2", "--env", "RABIT_PS_STALENESS=0"], {}, "ps_async is 0 (from: default): the first bounds"),
        (
            ["-np", "2", "--ps-staleness", "8"],
            {"RABIT_PS_ASYNC": "0"},
            "ps_async is 0 (from: RABIT_PS_ASYNC): the first",
        ),
    ],
)
def test_servers_that_cannot_be_started_are_refused(rabitrun, flags, environ, text):
    job = rabitrun(*flags, "true", environ=environ)

    assert job.status == 2
    assert text in job.err


def test_without_servers_the_ranks_sum_themselves(rabitrun):
    job = rabitrun("-np", 3, sys.executable, "-c", SUMS, environ={"RABIT_BACKEND": "ps"})

    assert job.status == 0, job.err
    assert job.out.count("done") == 3
    assert "('allreduce', 'ps', 'only')" in job.out


def test_one_rank_alone_needs_no_servers(rabitrun):
    job = rabitrun("-np", 1, sys.executable, "-c", ALONE, environ={"RABIT_BACKEND": "ps"})

    assert job.status == 0, job.err
    assert "1000.0" in job.out
    assert "{'ps': 1}" in job.out


def test_servers_that_do_not_come_are_missed(rabitrun):
    job = rabitrun(
        "-np", 2, "--connect-timeout", "2s", sys.executable, "-c",
        "import os, rabit; os.environ['RABIT_SERVERS'] = '1'; rabit.init()",
    )  # fmt: skip

    assert job.status == 1
    assert "server 0 of 1 has not appeared" in job.err


TRAFFIC = """
import numpy as np, rabit
rabit.init()
sizes = [int(each) for each in np.random.default_rng(7).integers(1_000, 400_000, 40)]
sizes.append(3_000_000)
handles = [rabit.allreduce_async(np.ones(each, np.float32), name=f"x{i}")
           for i, each in enumerate(sizes)]
for handle in handles:
    rabit.synchronize(handle)
seen = rabit.statistics()["backend_details"]["ps"]
total = 4 * sum(sizes)
links = [each["bytes_pushed"] for each in seen["servers"]]
links += [each["bytes_pulled"] for each in seen["servers"]]
wanted = total / len(seen["servers"])
wire = [seen["transport"]["bytes_sent"], seen["transport"]["bytes_received"]]
print("links", max(abs(each / wanted - 1) for each in links) < 0.05)
print("wire", max(abs(each / total - 1) for each in wire) < 0.05, flush=True)
"""


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("servers", [1, 2, 4])
def test_every_link_carries_its_share(rabitrun, ranks, servers):
    """M / k in each direction of each link between a worker and one of k dedicated servers."""
    job = rabitrun("-np", ranks, "-s", servers, sys.executable, "-c", TRAFFIC)

    assert job.status == 0, job.err
    assert job.out.count("links True") == ranks
    assert job.out.count("wire True") == ranks


SHARES = """
import os, sys
import numpy as np
rank = int(os.environ["RABIT_RANK"])
os.environ["RABIT_HOST_KEY"] = f"host{rank}"
if sys.argv[1:]:
    os.environ["RABIT_LINK_BANDWIDTH"] = sys.argv[1 + rank]
import rabit
rabit.init()
sizes = [int(each) for each in np.random.default_rng(7).integers(1_000, 400_000, 40)]
sizes.append(3_000_000)
for i, each in enumerate(sizes):
    out = rabit.allreduce(np.ones(each, np.float32), op=rabit.Sum, name=f"x{i}")
    assert out[0] == out[-1] == rabit.size()
seen = rabit.statistics()["backend_details"]["ps"]
total = 4 * sum(sizes)
wire = [round(seen["transport"][each] / total, 2) for each in ("bytes_sent", "bytes_received")]
print("rank", rank, *wire, round(seen["bytes_summed"] / total / rabit.size(), 2), flush=True)
"""


def test_ranks_and_a_server_of_another_host_share_the_sums(rabitrun):
    """n = 4 and k = 1: a rank sums 3 / 18 of each tensor, and its link is done after 24 / 18."""
    environ = {"RABIT_TRANSPORT": "tcp"}  # Ranks of one host that call it four have no common memory.

    job = rabitrun("-np", 4, "-s", 1, sys.executable, "-c", SHARES, environ=environ)

    assert job.status == 0, job.err
    found = [[float(word) for word in line.split()[2:]] for line in lines_of(job, "rank ")]
    assert len(found) == 4
    for sent, received, summed in found:
        assert abs(sent / (24 / 18) - 1) < 0.05
        assert abs(received / (24 / 18) - 1) < 0.05
        assert abs(summed / (3 / 18) - 1) < 0.05


def test_ranks_sum_as_much_as_their_links_allow(rabitrun):
    """Without servers, x_i = (T b_i - 1) / (n - 2), and T = 24 / (4 * 5) for links of 1, 1, 1 and 2."""
    environ = {"RABIT_TRANSPORT": "tcp", "RABIT_BACKEND": "ps"}

    job = rabitrun(
        "-np", 4, sys.executable, "-c", SHARES, "100M", "100M", "100M", "200M", environ=environ
    )

    assert job.status == 0, job.err
    found = {line.split()[1]: float(line.split()[4]) for line in lines_of(job, "rank ")}
    assert found == pytest.approx({"0": 0.1, "1": 0.1, "2": 0.1, "3": 0.7}, abs=0.02)


def lines_of(job, start):
    lines = [line.rpartition(": ")[2].rpartition("] ")[2] for line in job.out.splitlines()]
    return [line for line in lines if line.startswith(start)]


def hosts_of(plan):
    return {
        str(each.host): ([place.rank for place in each.places], [s.server for s in each.servers])
        for each in plan.hosts
    }


def test_servers_go_to_the_hosts_of_the_ranks_in_turn():
    plan = with_servers(make_plan(parse_hosts("a:2,b:2"), 4), 3, None)

    assert hosts_of(plan) == {"a": ([0, 1], [0, 2]), "b": ([2, 3], [1])}
    assert [plan.name_of(number) for number in (3, 4, 6, 7)] == ["rank 3", "server 0", "server 2", "process 7"]


def server_losses(plan):
    return ServerLosses(plan, Roster(plan.host_names, plan.size, lambda number: []))


def test_a_host_of_servers_alone_may_be_lost():
    losses = server_losses(with_servers(make_plan(parse_hosts("a:2"), 2), 3, parse_hosts("c:2,d"), 2))

    assert not losses.survives([0, 2], is_killed=True)
    assert losses.survives([2, 4], is_killed=True)
    assert losses.lost == {2, 4}
    assert losses.note == "the job continues with 1 of 3 servers (--server-replicas 2)"
    assert losses.is_served
    assert losses.survives([3], is_killed=True)
    assert losses.note == "the ranks continue, and what they do on servers fails"
    assert not losses.is_served


def test_a_server_without_replicas_that_gives_up_ends_the_job():
    losses = server_losses(with_servers(make_plan(parse_hosts("a:2"), 2), 3, None))

    assert not losses.survives([3], is_killed=False)
    assert losses.survives([3], is_killed=True)
    assert not losses.is_served


def test_servers_go_to_hosts_of_their_own():
    plan = with_servers(make_plan(parse_hosts("a:2"), 2), 3, parse_hosts("c:2,a,d"))

    assert hosts_of(plan) == {"a": ([0, 1], [1]), "c": ([], [0]), "d": ([], [2])}
    assert plan.processes == 5


def test_more_servers_than_room_are_refused():
    with pytest.raises(InvalidArgument, match="has room for 2"):
        with_servers(make_plan(parse_hosts("a:2"), 2), 3, parse_hosts("c:2"))


BYTEPS = "import os, rabit; rabit.init(); print('job', rabit.size(), os.environ['RABIT_SERVERS'])"


def test_variables_of_byteps_say_how_many_processes_there_are(rabitrun):
    environ = {
        "DMLC_ROLE": "worker", "DMLC_WORKER_ID": "0", "DMLC_NUM_WORKER": "2", "DMLC_NUM_SERVER": "1",
        "DMLC_PS_ROOT_URI": "10.0.0.1", "BYTEPS_PARTITION_BYTES": "4096000",
    }  # fmt: skip

    job = rabitrun(sys.executable, "-c", BYTEPS, environ=environ)

    assert job.status == 0, job.err
    assert job.out.count("job 2 1") == 2
    assert "honoured DMLC_NUM_SERVER as RABIT_SERVERS, BYTEPS_PARTITION_BYTES as" in job.err
    assert "DMLC_PS_ROOT_URI (rabitrun opens the place" in job.err


@pytest.mark.parametrize(
    ("environ", "text"),
    [
        ({"DMLC_ROLE": "server"}, "ask for the server of a BytePS job, and rabitrun starts all"),
        ({"DMLC_ROLE": "scheduler"}, "ask for the scheduler of a BytePS job"),
        ({"DMLC_WORKER_ID": "1"}, "ask for worker 1 of a BytePS job"),
        ({"DMLC_NUM_WORKER": "all"}, "DMLC_NUM_WORKER is 'all': expected a number"),
    ],
)
def test_variables_of_byteps_that_mean_something_else_are_refused(rabitrun, environ, text):
    job = rabitrun("true", environ=environ)

    assert job.status == 2
    assert text in job.err
