"""What the emulated driver cannot tell: the real one, torch's own streams and allocator, and speed.

`make test-gpu`.  One GPU will do: the ranks share it.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available(),
        reason=f"torch {torch.__version__} sees no CUDA device",
    ),
]

HEAD = """
import time
device = rabit.local_device()
torch.cuda.set_device(device)
rank, size = rabit.rank(), rabit.size()
"""


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
