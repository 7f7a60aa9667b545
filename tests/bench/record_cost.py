"""What the record costs: calls of 1 KiB between two ranks, with and without it, in turns."""

from __future__ import annotations

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
    without, with_record = (median(each) for each in zip(*pairs, strict=True))
    more = median(with_record / without for without, with_record in pairs) - 1
    table(["without", "with", "more"], [[f"{without:.2f} us", f"{with_record:.2f} us", f"{more:+.1%}"]])


def record_rank(o: Any) -> float:
    """Microseconds of a call and a mark of a step."""
    import rabit

    rabit.init()
    x = np.ones(256, np.float32)
    for _ in range(300):
        rabit.allreduce_(x, name="grad", op=rabit.Max)
    begin = time.perf_counter()
    for _ in range(o.calls):
        rabit.allreduce_(x, name="grad", op=rabit.Max)
        rabit.mark_step()
    taken = time.perf_counter() - begin
    rabit.shutdown()
    return taken / o.calls * 1e6
