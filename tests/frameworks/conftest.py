"""Runs a script on several ranks under rabitrun and hands back what each rank reported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import emulated_cuda, emulated_nccl
from support.rank_server import RankServer
from support.reports import reports_of

IMPORTS = """
import torch
import rabit_torch as rabit

torch.set_num_threads(1)
"""


@pytest.fixture
def on_ranks(tmp_path: Path, rank_server: RankServer) -> Callable[..., list[Any]]:
    """on_ranks(n, script, **variables): the script calls report(value); returns the values by rank."""

    def run(ranks: int, script: str, timeout: float = 240, **variables: str) -> list[Any]:
        return reports_of(rank_server, ranks, IMPORTS, script, tmp_path, timeout, **variables)

    return run


ON_DEVICES = f"""
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from support import cuda_tensor
from support.cuda_tensor import driver, on_device, to_device
rank, size = rabit.rank(), rabit.size()


def take_steps(model, optimizer, kind, is_on_device, steps, most=None):
    generator = torch.Generator().manual_seed(rank)
    for _ in steps:
        batch = torch.randn(16, 8, generator=generator).to(kind)
        batch = on_device(batch, rank) if is_on_device else batch
        optimizer.zero_grad()
        model(batch).pow(2).mean().backward()
        if most is not None:
            optimizer.clip_grad_norm_(most)
        optimizer.step()
    return model, optimizer


def equal(found, expected):
    return all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
"""


# The driver is there before an engine looks for it.
NCCL = """
rabit.shutdown()
os.environ["RABIT_BACKEND"] = os.environ["BACKEND_HERE"]
rabit.init()
"""


@pytest.fixture
def on_devices(on_ranks: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    """As on_ranks, for tensors of the emulated driver; with NCCL, if `backend` names it."""
    variables = {"EMULATED_CUDA": str(emulated_cuda.build())}

    def run(ranks: int, script: str, backend: str = "builtin", **more: str) -> list[Any]:
        head = ON_DEVICES
        if backend != "builtin":
            head += NCCL
            variables["BACKEND_HERE"] = backend
            variables["RABIT_NCCL_LIBRARY"] = str(emulated_nccl.build())
        return on_ranks(ranks, head + script, **variables, **more)

    return run
