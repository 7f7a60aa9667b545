"""When gradients come out of the backward pass, for each way to compile a model.

python tests/bench/compile_hooks.py [--backend aot_eager|inductor] [--steps 9]
One process, one thread: twelve blocks (LayerNorm, Linear, ReLU) of width 512, batch 64.  Prints, of the median
step, the position of the first, the median and the last gradient in % of the backward pass, and its time.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import time
from typing import Any

import torch
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
            torch.compiler.disable(
                lambda _, index=index: arrived.append((time.perf_counter(), index))
            )
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
    first, middle, last, milliseconds = (
        statistics.median(column) for column in zip(*found, strict=True)
    )
    return first, middle, last, milliseconds, [index for _, index in arrived[:5]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="aot_eager")
    parser.add_argument("--steps", type=int, default=9)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, {arguments.backend}: % of backward, first / median / last")
    for mode in ("eager", "whole", "whole, compiled autograd", "blocks", "split"):
        first, middle, last, milliseconds, order = positions(
            mode, arguments.backend, arguments.steps
        )
        print(
            f"| {mode} | {first:.0f} / {middle:.0f} / {last:.0f} | {milliseconds:.0f} ms | "
            f"{' '.join(map(str, order))} |"
        )


if __name__ == "__main__":
    main()
