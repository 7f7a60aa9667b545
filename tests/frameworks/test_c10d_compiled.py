"""Backend "rabit" in compiled code: torch.compile does not follow calls into it."""

from __future__ import annotations

import pytest

PROLOGUE = """
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
import rabit_torch.distributed

dist.init_process_group("rabit", rank=rabit.rank(), world_size=2)
x = torch.full((4, 8), 1.0 + rabit.rank())


def model():
    torch.manual_seed(0)
    return DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 1)))


def weights_after(forward, wrapped):
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        forward(x).square().sum().backward()
        optimizer.step()
    return torch.cat([each.detach().reshape(-1) for each in wrapped.parameters()])
"""
EPILOGUE = "\ndist.destroy_process_group()\n"


def test_a_compiled_ddp_trains_to_the_weights_of_one_that_is_not(on_ranks):
    results = on_ranks(
        2,
        PROLOGUE
        + """
plain = model()
expected = weights_after(plain, plain)
wrapped = model()
found = weights_after(torch.compile(wrapped, backend="aot_eager"), wrapped)
report((found - expected).abs().max().item())
"""
        + EPILOGUE,
    )

    assert max(results) < 1e-5


def test_a_whole_compiled_step_trains_to_the_weights_of_one_that_is_not(on_ranks):
    results = on_ranks(
        2,
        PROLOGUE
        + """
plain = model()
expected = weights_after(plain, plain)
wrapped = model()
optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)

@torch.compile(backend="aot_eager")
def step():
    optimizer.zero_grad()
    wrapped(x).square().sum().backward()
    optimizer.step()

for _ in range(3):
    step()
found = torch.cat([each.detach().reshape(-1) for each in wrapped.parameters()])
report((found - expected).abs().max().item())
"""
        + EPILOGUE,
    )

    assert max(results) < 1e-5


@pytest.mark.parametrize("is_async", [False, True])
def test_compiled_functions_call_collectives(on_ranks, is_async):
    results = on_ranks(
        2,
        PROLOGUE
        + f"""
dist.barrier()

@torch.compile(backend="aot_eager")
def function(tensor):
    doubled = tensor * 2
    work = dist.all_reduce(doubled, async_op={is_async})
    if {is_async}:
        work.wait()
    return doubled + 1

dist.barrier()  # the tracer is there
report(function(torch.ones(3)).tolist())
"""
        + EPILOGUE,
    )

    assert results == [[5.0] * 3] * 2
