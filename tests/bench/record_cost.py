"""What the record costs: calls of 1 KiB between two ranks, with and without it, in turns."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np
from harness import case, median, on_ranks, table


@case(pairs=20, calls=3000)
def record_cost(o: Any) -> None:
    """What the record costs: calls of 1 KiB between two ranks, with and without it, in turns; medians of pairs."""
    pairs = []
    for number in range(o.pairs):
        order = ("1", "0") if number % 2 else ("0", "1")
        found = {record: on_ranks(record_rank, o, 2, environ={"RABIT_RECORD": record})[0] for record in order}
        pairs.append((found["0"], found["1"]))
    rows = []
    for place, name in enumerate(("allreduce_ of 1 KiB", "mark_step()")):
        without, with_record = (median(found[place] for found in each) for each in zip(*pairs, strict=True))
        more = median(after[place] / before[place] for before, after in pairs) - 1
        rows.append([name, f"{without:.2f} us", f"{with_record:.2f} us", f"{more:+.1%}"])
    table(["", "without", "with", "more"], rows)


def record_rank(o: Any) -> tuple[float, float]:
    """Microseconds of a call and of a mark of a step."""
    import rabit

    rabit.init()
    x = np.ones(256, np.float32)
    for _ in range(300):
        rabit.allreduce_(x, name="grad", op=rabit.Max)
    begin = time.perf_counter()
    for _ in range(o.calls):
        rabit.allreduce_(x, name="grad", op=rabit.Max)
    between = time.perf_counter()
    for _ in range(o.calls):
        rabit.mark_step()
    end = time.perf_counter()
    rabit.shutdown()
    return (between - begin) / o.calls * 1e6, (end - between) / o.calls * 1e6


@case(pairs=30, steps=100)
def record_step(o: Any) -> None:
    """What the record costs a training step of torch on two ranks: blocks of steps with and without it, in turns."""
    pairs = on_ranks(step_rank, o, 2)[0]
    without, with_record = (median(block) for block in zip(*pairs, strict=True))
    more = sorted(after / before - 1 for before, after in pairs)
    middle = f"{more[len(more) // 4]:+.2%} to {more[-1 - len(more) // 4]:+.2%}"
    row = [f"{without:.3f} ms", f"{with_record:.3f} ms", f"{median(more):+.2%}", middle]
    table(["without", "with", "more", "middle half of the pairs"], [row])


def step_rank(o: Any) -> list[tuple[float, float]]:
    """Of each pair the milliseconds of a median step without and with the record."""
    import torch

    import rabit_torch as rabit

    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(8)))
    batch = torch.randn(64, 256)
    pairs = []
    for number in range(o.pairs):
        found = {}
        for record in ("1", "0") if number % 2 else ("0", "1"):
            os.environ["RABIT_RECORD"] = record
            rabit.init()
            optimizer = rabit.DistributedOptimizer(
                torch.optim.SGD(model.parameters(), lr=1e-4), named_parameters=model.named_parameters()
            )
            times = []
            for _ in range(10 + o.steps):
                began = time.perf_counter()
                optimizer.zero_grad()
                model(batch).square().mean().backward()
                optimizer.step()
                times.append(1e3 * (time.perf_counter() - began))
            rabit.shutdown()
            found[record] = median(times[10:])
        pairs.append((found["0"], found["1"]))
    return pairs
