"""An embedding whose gradient travels dense, as touched rows, or as a sparse tensor of torch.

rabitrun -np 2 python tests/bench/row_sparse.py [--rows 50000] [--width 128] [--words 2048] [--steps 9]
The ways take turns, step by step, in the same processes.  Words are drawn by Zipf's law.  Prints the bytes that
rank 0 sends in a step and the median time of a step.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import torch

import rabit_torch as rabit


class Way:
    """One model and its optimizer."""

    def __init__(self, rows: int, width: int, *, is_sparse: bool, row_sparse: bool) -> None:
        torch.manual_seed(0)
        self.table = torch.nn.Embedding(rows, width, sparse=is_sparse)
        self.optimizer = rabit.DistributedOptimizer(
            torch.optim.SGD(self.table.parameters(), lr=0.1),
            self.table.named_parameters(),
            row_sparse=["weight"] if row_sparse else False,
        )
        self.seconds: list[float] = []
        self.bytes = 0

    def step(self, words: torch.Tensor) -> None:
        rabit.barrier()
        before, start = sent_bytes(), time.perf_counter()
        self.table(words).square().sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.seconds.append(time.perf_counter() - start)
        self.bytes = sent_bytes() - before


def sent_bytes() -> int:
    data: dict[str, Any] = rabit.statistics()["backend_details"]["builtin"]["transport"]
    return int(data["bytes_sent"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--words", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=9)
    arguments = parser.parse_args()
    rabit.init()
    torch.set_num_threads(1)
    shape = (arguments.rows, arguments.width)
    ways = {
        "dense": Way(*shape, is_sparse=False, row_sparse=False),
        "row_sparse": Way(*shape, is_sparse=False, row_sparse=True),
        "Embedding(sparse=True)": Way(*shape, is_sparse=True, row_sparse=False),
    }
    generator = torch.Generator().manual_seed(rabit.rank())
    frequency = 1.0 / torch.arange(1, arguments.rows + 1)
    for _ in range(arguments.steps + 2):
        words = torch.multinomial(frequency, arguments.words, True, generator=generator)
        for way in ways.values():
            way.step(words)
    if rabit.rank() == 0:
        print(f"| {shape[0]} x {shape[1]}, {arguments.words} words | bytes sent | step |")
        for name, way in ways.items():
            print(
                f"| {name} | {way.bytes / 1e6:.2f} MB "
                f"| {1e3 * statistics.median(way.seconds[2:]):.1f} ms |"
            )
    rabit.shutdown()


if __name__ == "__main__":
    main()
