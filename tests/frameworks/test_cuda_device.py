"""What the emulated driver cannot tell: the real one, torch's own streams and allocator, and speed.

`make test-gpu`.  One GPU will do: the ranks share it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available(),
        reason=f"torch {torch.__version__} sees no CUDA device",
    ),
]

ROOT = Path(__file__).parents[2]

HEAD = """
import time
device = rabit.local_device()
torch.cuda.set_device(device)
rank, size = rabit.rank(), rabit.size()
"""


@pytest.fixture
def rank_server():
    """Each rank is a process of its own: one that is forked cannot use CUDA if its parent has asked for a device."""
    return SimpleNamespace(command=[sys.executable])


def test_the_driver_is_found():
    from rabit import _native

    found = _native.cuda_driver()

    assert found["unavailable"] == ""
    assert found["devices"] == torch.cuda.device_count()


@pytest.mark.parametrize("ranks", [2, 4])
def test_collectives_give_what_they_give_on_the_host(on_ranks, ranks):
    results = on_ranks(
        ranks,
        HEAD
        + """
wrong = []
generator = torch.Generator().manual_seed(rank)
for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.uint8):
    for count in (1, 7, 1000, 3_000_001):
        here = torch.randint(0, 9, (count, ), generator=generator).to(dtype)
        there = here.to(device)
        for name, call in {
            "sum": lambda x: rabit.allreduce(x, op=rabit.Sum),
            "gather": rabit.allgather,
            "broadcast": lambda x: rabit.broadcast(x, size - 1),
            "scatter": lambda x: rabit.reducescatter(x, op=rabit.Max),
        }.items():
            wanted, found = call(here), call(there)
            if not found.is_cuda or not torch.equal(found.cpu(), wanted):
                wrong.append([name, str(dtype), count])
report(wrong)
""",
    )

    assert results == [[]] * ranks


def test_a_call_returns_before_the_kernels_that_it_waits_for(on_ranks):
    """Also on a stream that is not the default one, and of memory that torch reuses."""
    results = on_ranks(
        2,
        HEAD
        + """
rabit.allreduce_(torch.ones(500_000, device=device), name="late", op=rabit.Sum)  # the driver is there
torch.cuda._sleep(1000)
torch.cuda.synchronize()
slowest, wrong = 0.0, 0
for step in range(20):
    with torch.cuda.stream(torch.cuda.Stream() if step % 2 else torch.cuda.current_stream()):
        torch.cuda._sleep(200_000_000)  # about 0.1 s
        value = torch.full((500_000,), float(step + rank), device=device)
        began = time.monotonic()
        handle = rabit.allreduce_async_(value, name="late", op=rabit.Sum)
        slowest = max(slowest, time.monotonic() - began)
        wrong += int((rabit.synchronize(handle) != 2 * step + 1).sum())
report([slowest, wrong])
""",
    )

    for slowest, wrong in results:
        assert wrong == 0
        assert slowest < 0.05


def test_training_on_a_device_follows_that_on_the_host(on_ranks):
    results = on_ranks(
        2,
        HEAD
        + """
def train(where):
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(16, 600), torch.nn.Tanh(), torch.nn.Linear(600, 4))
    model.to(where)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    optimizer = rabit.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    rabit.broadcast_parameters(model.state_dict(), root_rank=0)
    generator = torch.Generator().manual_seed(rank)
    for _ in range(10):
        optimizer.zero_grad()
        model(torch.randn(32, 16, generator=generator).to(where)).pow(2).mean().backward()
        optimizer.step()
    return torch.cat([each.detach().cpu().flatten() for each in model.parameters()])


there, here = train(device), train("cpu")
report([float((there - here).abs().max()), rabit.allgather_object(there.sum().item())])
""",
    )

    for difference, sums in results:
        assert difference < 1e-4
        assert len(set(sums)) == 1


def test_ddp_trains_on_a_device(on_ranks):
    results = on_ranks(
        2,
        HEAD
        + """
import torch.distributed as dist
import rabit_torch.distributed
dist.init_process_group("cpu:rabit,cuda:rabit", init_method="env://", rank=rank, world_size=size)
torch.manual_seed(rank)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(100, 10).to(device))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    optimizer.zero_grad()
    model(torch.randn(8, 100, device=device)).pow(2).mean().backward()
    optimizer.step()
report(sum(each.double().sum().item() for each in model.parameters()))
dist.destroy_process_group()
""",
    )

    assert results[0] == results[1]


# The package may be there and too old, or the driver: the engine says which.
NCCL = """
rabit.shutdown()
os.environ["RABIT_BACKEND"] = "nccl"
torch.cuda.set_device(int(os.environ["RABIT_LOCAL_RANK"]) % torch.cuda.device_count())
rabit.init()
"""


@pytest.mark.parametrize("ranks", [1, 2])
def test_nccl_gives_what_the_host_gives(on_ranks, ranks):
    if torch.cuda.device_count() < ranks:
        pytest.skip(
            f"NCCL wants a GPU for each rank: {ranks} ranks, {torch.cuda.device_count()} GPUs"
        )
    results = on_ranks(
        ranks,
        NCCL
        + HEAD
        + """
wrong = []
generator = torch.Generator().manual_seed(rank)
for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.uint8):
    for count in (1, 7, 1000, 3_000_001):
        here = torch.randint(0, 9, (count, ), generator=generator).to(dtype)
        there = here.to(device)
        for name, call in {
            "sum": lambda x: rabit.allreduce(x, op=rabit.Sum),
            "gather": rabit.allgather,
            "broadcast": lambda x: rabit.broadcast(x, size - 1),
            "scatter": lambda x: rabit.reducescatter(x, op=rabit.Sum),
            "alltoall": lambda x: rabit.alltoall(x, [x.shape[0]] + [0] * (size - 1)),
            "gather to 0": lambda x: rabit.gather(x, 0),
        }.items():
            wanted, found = call(here), call(there)
            found = found[0] if isinstance(found, tuple) else found
            wanted = wanted[0] if isinstance(wanted, tuple) else wanted
            if wanted is not None and (not found.is_cuda or not torch.equal(found.cpu(), wanted)):
                wrong.append([name, str(dtype), count])
for _ in range(3):
    several = [torch.full((count,), float(rank), device=device) for count in (3, 1000, 700_000)]
    total = float(sum(range(size)))
    for each in rabit.grouped_allreduce_(several, op=rabit.Sum):
        wrong += [] if bool((each == total).all()) else [["grouped", each.numel()]]
if size > 1 and rank < 2:
    message = torch.arange(1000.0, device=device)
    if rank == 0:
        rabit.send(message, 1, "m")
    elif not torch.equal(rabit.recv(torch.zeros_like(message), 0, "m"), message):
        wrong.append(["send"])
report([wrong, rabit.statistics()["lane_classes"]["nccl"]["lanes"]])
""",
    )

    assert results == [[[], 1]] * ranks


@pytest.mark.parametrize("ranks", [2, 4])
def test_nccl_inside_claimed_hosts_gives_the_sums_of_the_host(on_ranks, ranks):
    """Two hosts of half of the ranks: with two ranks NCCL has one for itself, and one GPU will do."""
    if torch.cuda.device_count() < ranks // 2:
        pytest.skip(f"NCCL wants {ranks // 2} GPUs, there are {torch.cuda.device_count()}")
    results = on_ranks(
        ranks,
        """
os.environ["RABIT_HOST_KEY"] = f"host{int(os.environ['RABIT_RANK']) * 2 // rabit.size()}"
os.environ["RABIT_ROUTE"] = "allreduce:nccl/hierarchical"
"""
        + NCCL
        + HEAD
        + """
wrong = []
generator = torch.Generator().manual_seed(rank)
for dtype in (torch.float32, torch.float16, torch.int64):
    for count in (1, 7, 1000, 3_000_001):
        here = torch.randint(0, 9, (count, ), generator=generator).to(dtype)
        wanted, found = (rabit.allreduce(x, op=rabit.Sum) for x in (here, here.to(device)))
        if not found.is_cuda or not torch.equal(found.cpu(), wanted):
            wrong.append([str(dtype), count])
routes = {(each["backend"], each["row"]) for each in rabit.statistics()["routes"]}
report([wrong, ("nccl.hierarchical", "route_rule") in routes])
""",
    )

    assert results == [[[], True]] * ranks


@pytest.mark.parametrize("backend", ["builtin", "nccl"])
def test_a_model_in_parts_trains_on_a_device(on_ranks, backend):
    """Kernels are late: torch gives the memory of a unit to the next one before they have read it."""
    ranks = min(2, torch.cuda.device_count()) if backend == "nccl" else 2
    results = on_ranks(
        ranks,
        (NCCL if backend == "nccl" else "")
        + HEAD
        + """
from rabit_torch import sharding


class Late(torch.nn.Linear):
    def forward(self, hidden):
        if hidden.is_cuda:
            torch.cuda._sleep(10_000_000)  # about 5 ms
        return super().forward(hidden).tanh()


def train(where, built="cpu", **options):
    torch.manual_seed(3)
    with torch.device(built):
        model = torch.nn.Sequential(*(Late(300, 300) for _ in range(6)), torch.nn.Linear(300, 4))
    if built == "cpu":
        model.to(where)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    with torch.device(where):
        sharding.shard(model, keep=300)
    optimizer = rabit.DistributedOptimizer(
        optimizer, model.named_parameters(), shard="parameters", model=model, **options
    )
    generator = torch.Generator().manual_seed(rank)
    kept = []
    for _ in range(6):
        optimizer.zero_grad()
        model(torch.randn(32, 300, generator=generator).to(where)).pow(2).mean().backward()
        optimizer.step()
        kept.append(torch.cuda.memory_allocated())
    assert kept[-1] <= kept[2], kept
    assert {each.device for each in model.parameters()} == {torch.device(where)}
    with sharding.gathered(model):
        return torch.cat([each.detach().cpu().flatten() for each in model.parameters()])


here = train("cpu")
found = [train(device), train(device, offload="cpu")]
train(device, "meta")
report([[float((here - there).abs().max()) for there in found], rabit.allgather_object(found[0].sum().item())])
""",
    )

    for differences, sums in results:
        assert max(differences) < 1e-4
        assert len(set(sums)) == 1


@pytest.mark.parametrize("backend", ["builtin", "nccl"])
def test_the_host_does_not_wait_for_the_device(on_ranks, backend):
    """Of what comes after a wait only the streams know, and results are right all the same."""
    results = on_ranks(
        1,
        (NCCL if backend == "nccl" else "")
        + HEAD
        + """
value = torch.ones(1_000_000, device=device)
rabit.allreduce_(value, name="x")
torch.cuda._sleep(1000)
slowest = 0.0
for step in range(10):
    torch.cuda.synchronize()
    torch.cuda._sleep(200_000_000)  # about 0.1 s
    value.add_(1.0)
    began = time.monotonic()
    rabit.allreduce_(value, name="x", op=rabit.Sum)
    slowest = max(slowest, time.monotonic() - began)
    value.add_(1.0)
report([slowest, value[::1000].unique().tolist()])
""",
    )

    ((slowest, values),) = results
    assert values == [21.0]
    if backend == "nccl":
        assert slowest < 0.05


@pytest.mark.parametrize("backend", ["builtin", "nccl"])
def test_a_graph_is_captured_beside_operations(on_ranks, backend):
    """torch forbids every thread of the process what might wait for the device."""
    results = on_ranks(
        1 if backend == "nccl" else 2,
        (NCCL if backend == "nccl" else "")
        + HEAD
        + """
import threading
counted = torch.zeros(1000, device=device)
mine = torch.ones(100_000, device=device)
rabit.allreduce_(mine, name="beside")  # the driver is there
began = threading.Event()


def reduce_often():
    torch.cuda.set_device(device)
    for _ in range(300):
        rabit.allreduce_(mine, name="beside")
        began.set()


beside = threading.Thread(target=reduce_often)
graph, refused = torch.cuda.CUDAGraph(), ""
beside.start()
began.wait()
with torch.cuda.graph(graph):
    for _ in range(2000):
        counted.add_(1.0)
    try:
        rabit.allreduce_async_(counted, name="within")
    except rabit.Unsupported as error:
        refused = str(error)
beside.join()
counted.zero_()
graph.replay()
report([counted[::100].unique().tolist(), mine[::1000].unique().tolist(), refused])
""",
    )

    for counted, mine, refused in results:
        assert counted == [2000.0] and mine == [1.0]
        assert "outside of the capture" in refused


def test_what_a_rank_has_sent_arrives_after_it_has_ended(on_ranks):
    """The kernel of who sends is over before NCCL's threads are."""
    if torch.cuda.device_count() < 2:
        pytest.skip(f"NCCL wants a GPU for each rank: 2 ranks, {torch.cuda.device_count()} GPUs")
    results = on_ranks(
        2,
        NCCL
        + HEAD
        + """
values = torch.full((1_000_000,), float(rank), device=device)
rabit.broadcast_(values, 1, name="first")
if rank == 1:
    torch.cuda._sleep(2_000_000_000)  # about 1 s, before what it gets
values.fill_(7.0 + rank)
rabit.broadcast_(values, 0, name="last")
if rank == 1:
    torch.cuda.synchronize()
report(values.unique().tolist())
""",
    )

    assert results == [[7.0], [7.0]]


def test_the_demo_reaches_its_accuracy():
    pytest.importorskip("sklearn")
    command = [sys.executable, "-m", "rabit.launch", "-np", "2", sys.executable]
    done = subprocess.run(
        [*command, str(ROOT / "examples" / "torch_digits.py")],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "OMP_NUM_THREADS": "2"},
        check=False,
    )
    print(done.stdout[-400:])

    assert done.returncode == 0, done.stdout + done.stderr


def test_staging_is_as_fast_as_the_copies_alone(on_ranks):
    """One rank exchanges nothing: what is left is a copy to the host and one back, beside each other."""
    (result,) = on_ranks(
        1,
        HEAD
        + """
tensor = torch.zeros(64 << 20, device=device)
pinned = torch.empty(64 << 20, pin_memory=True)


def seconds(call):
    best = float("inf")
    for _ in range(8):
        torch.cuda.synchronize()
        began = time.monotonic()
        call()
        torch.cuda.synchronize()
        best = min(best, time.monotonic() - began)
    return best


def copies():
    pinned.copy_(tensor, non_blocking=True)
    tensor.copy_(pinned, non_blocking=True)


report([seconds(copies), seconds(lambda: rabit.allreduce_(tensor, name="big"))])
""",
    )

    copies, staged = result
    print(f"256 MiB to the host and back: {copies * 1e3:.1f} ms, staged {staged * 1e3:.1f} ms")
    assert staged < copies / 0.9
