"""The backend nccl from Python: who is asked, what runs there, and what happens when it cannot."""

from __future__ import annotations

import json

import pytest
from support import emulated_cuda
from support.topologies import star

from rabit.planner import Plan
from rabit.planner.document import described

pytestmark = pytest.mark.skipif(bool(emulated_cuda.MISSING), reason=emulated_cuda.MISSING)


@pytest.mark.parametrize("backend", ["nccl", "auto"])
def test_what_is_on_a_device_stays_there(on_devices, backend):
    results = on_devices(
        2,
        """
copies = driver.calls("cuMemcpyDtoHAsync_v2")
mine = [on_device(torch.full((count,), float(rank + 1)), rank) for count in (1, 1000, 300_000)]
for _ in range(3):
    for each in rabit.grouped_allreduce_(mine):
        assert each.is_cuda
here = rabit.allreduce(torch.ones(3), op=rabit.Sum)
maximum = rabit.allreduce(mine[0], op=rabit.Max, name="staged")
statistics = rabit.statistics()
report([
    [each.cpu()[-1].item() for each in mine],
    here.tolist(),
    maximum.item(),
    driver.calls("cuMemcpyDtoHAsync_v2") - copies,
    statistics["lane_classes"]["nccl"]["lanes"],
])
""",
        backend,
    )

    for values, here, maximum, copies, lanes in results:
        assert values == [1.5] * 3
        assert here == [2.0] * 3
        assert maximum == 1.5
        assert copies == 1  # of the maximum, which NCCL takes without NaN
        assert lanes == 1


def test_a_rule_takes_nccl_inside_the_hosts_and_the_network_between(on_devices):
    results = on_devices(
        3,  # two on one host, one on the other
        """
rabit.shutdown()
os.environ["RABIT_HOST_KEY"] = os.environ["NCCL_HOSTID"] = f"host{rank // 2}"
os.environ["RABIT_ROUTE"] = "allreduce:>=4K:nccl/hierarchical"
rabit.init()
torch.manual_seed(rank)
drawn = [torch.randn(count) for count in (10, 5001, 300_000)]
mine = [on_device(each, rank % 2) for each in drawn]
for _ in range(2):
    rabit.grouped_allreduce_(mine, op=rabit.Average)
rabit.broadcast_(mine[0], 0)
routes = [
    [each["kind"], each["backend"], each["algorithm"], each["row"]]
    for each in rabit.statistics()["routes"]
]
sums = [each.cpu().sum().item() for each in mine]
report([[each[-1].item() for each in drawn], [each.cpu()[-1].item() for each in mine], sums, routes])
""",
        "nccl",
    )

    drawn, averages, sums, routes = zip(*results, strict=True)
    expected = [sum(of_ranks) / 3 for of_ranks in zip(*drawn, strict=True)]
    assert averages[0] == pytest.approx(expected, abs=1e-6)
    assert averages == (averages[0],) * 3 and sums == (sums[0],) * 3  # the same bits
    assert ["allreduce", "nccl.hierarchical", "hierarchical", "route_rule"] in routes[0]
    assert ["broadcast", "nccl", "library", "device"] in routes[0]


def test_a_plan_of_the_hosts_is_followed_between_them_until_it_is_taken_back(on_devices, tmp_path):
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(described(Plan(star(5, 10, 10)))))
    results = on_devices(
        5,
        """
import hashlib
from rabit.engine.current import current_engine
from rabit.planned import follow_plan
rabit.shutdown()
host = "h" + "01120"[rank]
os.environ["RABIT_HOST_KEY"] = os.environ["NCCL_HOSTID"] = host
rabit.init()
engine = current_engine()
torch.manual_seed(rank)
drawn, device = torch.randn(300_001), int("00101"[rank])
mine = on_device(drawn, device)
total = lambda: rabit.allreduce(mine, op=rabit.Sum, name="sum").cpu()
try:
    follow_plan(engine, os.environ["PLAN_HERE"], host.replace("h2", "node7"))
    refused = ""
except rabit.RabitError as error:
    refused = str(error)
total()
follow_plan(engine, os.environ["PLAN_HERE"], host)
sums = [total() for _ in range(2)]
engine.set_plan("")
total()
statistics = rabit.statistics()
routes = [
    [each["backend"], each["algorithm"], each["row"]]
    for each in statistics["routes"] if each["kind"] == "allreduce"
]
bits = [hashlib.sha256(each.numpy()).hexdigest() for each in sums]
# The last one may be on its way yet.
watched = statistics["totals"]["wire_bytes"] >= 3 * drawn.nbytes and statistics["communication_us"] > 0
report([drawn[-1].item(), sums[0][-1].item(), bits, refused, routes, watched])
""",
        "nccl",
        PLAN_HERE=str(path),
    )

    drawn, sums, bits, refused, routes, watched = zip(*results, strict=True)
    assert sums[0] == pytest.approx(sum(drawn), abs=1e-5)
    assert len({text for of_rank in bits for text in of_rank}) == 1
    for text in refused:
        assert "the job has node7, which it does not name; it names h2, where no rank runs" in text
    assert sorted(routes[0]) == [["nccl", "library", "device"], ["nccl.hierarchical", "plan", "plan"]]
    assert all(watched)  # by which the plan of RABIT_PLAN=auto is judged


def test_a_process_set_names_it(on_devices):
    results = on_devices(
        3,
        """
os.environ["NCCL_HOSTID"] = f"host{rank}"  # each process has devices of its own
copies = lambda: driver.calls("cuMemcpyDtoHAsync_v2")
all_ranks = rabit.add_process_set(rabit.ProcessSet([0, 1, 2], backend="nccl"))
pair = rabit.add_process_set(rabit.ProcessSet([0, 2], backend="nccl"))
mine = on_device(torch.ones(1000))
began = copies()
rabit.allreduce_(mine, op=rabit.Sum, name="there", process_set=all_ranks)
there = copies() - began
rabit.allreduce_(mine, op=rabit.Sum, name="here")
staged = copies() - began - there
if rank != 1:
    rabit.allreduce_(mine, op=rabit.Sum, name="pair", process_set=pair)
report([there, staged, mine.cpu()[0].item()])
""",
        "builtin,nccl",
    )

    assert results == [[0, 1, 18.0], [0, 1, 9.0], [0, 1, 18.0]]


def test_two_processes_on_one_gpu_are_told(on_devices):
    results = on_devices(
        2,
        """
try:
    rabit.allreduce_(on_device(torch.ones(10), 0), name="x")
    report("no error")
except rabit.RabitError as error:
    report(f"{type(error).__name__}: {error}")
wait_for_all()
os._exit(0)
""",
        "nccl",
    )

    for text in results:
        assert text.startswith("InvalidArgument: ") and "Duplicate GPU detected" in text


def test_a_rank_that_ends_without_a_word_is_named_and_nobody_hangs(on_devices):
    results = on_devices(
        2,
        """
mine = on_device(torch.ones(1000), rank)
rabit.allreduce_(mine, name="first")
if rank == 1:
    report("")
    os._exit(0)
try:
    rabit.allreduce_(mine, name="second")
    rabit.allreduce_(mine, name="third")
    report("no error")
except rabit.RabitError as error:
    report(f"{type(error).__name__}: {error}")
os._exit(0)
""",
        "nccl",
    )

    assert results[0].startswith("PeerLost: ") and "rank 1" in results[0]


def test_without_nccl_the_start_says_what_to_install(on_ranks):
    results = on_ranks(
        2,
        """
rabit.shutdown()
os.environ["RABIT_NCCL_LIBRARY"] = "/nowhere/libnccl.so.2"
os.environ["RABIT_BACKEND"] = "nccl"
try:
    rabit.init()
    text = "no error"
except rabit.RabitError as error:
    text = f"{type(error).__name__}: {error}"
Path(sys.argv[0]).with_name(f"rank.{os.environ['RABIT_RANK']}.json").write_text(json.dumps(text))
wait_for_all()
os._exit(0)
""",
    )

    for text in results:
        assert text.startswith("Unsupported: ")
        assert "there is no NCCL on rank 0" in text
        assert "pip install nvidia-nccl-cu13" in text


def test_auto_does_without_what_is_not_there(on_ranks):
    results = on_ranks(
        2,
        """
rabit.shutdown()
os.environ["RABIT_NCCL_LIBRARY"] = "/nowhere/libnccl.so.2"
os.environ["RABIT_BACKEND"] = "auto"
rabit.init()
total = rabit.allreduce(torch.ones(2), op=rabit.Sum).tolist()
report([total, sorted(rabit.statistics()["lane_classes"])])
""",
    )

    assert results == [[[2.0, 2.0], ["builtin"]]] * 2
