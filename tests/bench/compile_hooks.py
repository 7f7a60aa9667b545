"""When gradients come out of the backward pass."""

from __future__ import annotations

import contextlib
import statistics
import time
from typing import Any

import torch
from harness import case, table
from torch import nn
from torch._dynamo import compiled_autograd

import rabit_torch


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.linear = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(self.norm(x)))


def positions(mode: str, backend: str, steps: int) -> tuple[float, float, float, float, list[int]]:
    """(first, median, last gradient in % of the backward pass, its milliseconds, order)."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model: Any = nn.Sequential(*[Block(512) for _ in range(12)])
    arrived: list[tuple[float, int]] = []
    for index, parameter in enumerate(model.parameters()):
        parameter.register_post_accumulate_grad_hook(
            torch.compiler.disable(lambda _, index=index: arrived.append((time.perf_counter(), index)))
        )
    if mode == "blocks":
        rabit_torch.compile(model, "blocks", backend=backend)
    elif mode == "split":
        rabit_torch.compile(model, 3 << 20, backend=backend)
    elif mode != "eager":
        model = torch.compile(model, backend=backend)
    context: Any = contextlib.nullcontext
    if mode == "whole, compiled autograd":

        def context() -> Any:
            return compiled_autograd._enable(torch.compile(backend=backend))

    found = []
    x = torch.randn(64, 512)
    for step in range(steps + 3):
        arrived.clear()
        loss = model(x).square().mean()
        with context():
            start = time.perf_counter()
            loss.backward()
            end = time.perf_counter()
        if step >= 3:
            places = [100 * (at - start) / (end - start) for at, _ in arrived]
            found.append((places[0], statistics.median(places), places[-1], 1e3 * (end - start)))
    first, middle, last, milliseconds = (statistics.median(column) for column in zip(*found, strict=True))
    return first, middle, last, milliseconds, [index for _, index in arrived[:5]]


@case(backend="aot_eager", steps=9)
def compile_hooks(o: Any) -> None:
    """When gradients come out of the backward pass, for each way to compile a model.

    One process, one thread: twelve blocks (LayerNorm, Linear, ReLU) of width 512, batch 64.  Of the median step: the
    position of the first, the median and the last gradient in % of the backward pass, its time, and the first five.
    """
    torch.set_num_threads(1)
    rows = []
    for mode in ("eager", "whole", "whole, compiled autograd", "blocks", "split"):
        *places, milliseconds, order = positions(mode, o.backend, o.steps)
        shown = " / ".join(f"{place:.0f}" for place in places)
        rows.append([mode, shown, f"{milliseconds:.0f} ms", " ".join(map(str, order))])
    table([f"torch {torch.__version__}, {o.backend}", "first / median / last, %", "backward", "order"], rows)
