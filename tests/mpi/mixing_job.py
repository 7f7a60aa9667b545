"""Operations on several backends, submitted by every rank in an order of its own.

Arguments: seed, operations, backends with commas.  Prints "wrong N of M" at the end.
MIXING_RANKS_PER_HOST: so many ranks count as those of one host.
"""

from __future__ import annotations

import collections
import os
import random
import sys

import numpy as np
from support.mpi import pretend_hosts

import rabit

WINDOW = 64  # in flight on each rank
BACKENDS = tuple(sys.argv[3].split(","))


def describe(seed: int, number: int) -> tuple[str, str, int]:
    """Backend, kind and elements of an operation: the same on every rank."""
    chance = random.Random(f"{seed}.{number}")
    backend = chance.choice((*BACKENDS, ""))
    kind = chance.choice(("allreduce", "allreduce", "broadcast", "allgather", "alltoall"))
    return backend, kind, chance.choice((1, 3, 100, 5000, 70_000))


def submit(seed: int, number: int):
    """The handle, and the value that every element of the result must have."""
    backend, kind, count = describe(seed, number)
    rank, size = rabit.rank(), rabit.size()
    name, value = f"{seed}.{number}", number % 97
    if kind == "allreduce":
        mine = np.full(count, value + rank, np.float32)
        handle = rabit.allreduce_async(mine, name=name, op=rabit.Sum, backend=backend)
        return handle, [size * value + size * (size - 1) // 2] * 2
    if kind == "broadcast":
        root = number % size
        mine = np.full(count, value + rank, np.int64)
        return rabit.broadcast_async(mine, root, name, backend=backend), [value + root] * 2
    mine = np.full((size * min(count, 500),), value + rank, np.int32)
    run = rabit.allgather_async if kind == "allgather" else rabit.alltoall_async
    return run(mine, name=name, backend=backend), [value, value + size - 1]


def main() -> None:
    seed, operations = int(sys.argv[1]), int(sys.argv[2])
    if ranks_per_host := int(os.environ.get("MIXING_RANKS_PER_HOST", "0")):
        pretend_hosts(ranks_per_host)
    rabit.init()
    mine = random.Random(f"{seed} on rank {rabit.rank()}")
    pending: collections.deque = collections.deque()
    wrong = 0

    def finish_one() -> int:
        handle, (first, last) = pending.popleft()
        found = handle.result()
        return int(found[0] != first or found[-1] != last or found.min() != first
                   or found.max() != last)  # fmt: skip

    # Blocks of WINDOW operations, in another order on each rank, so that every rank's window always
    # holds what the others wait for.
    for begin in range(0, operations, WINDOW):
        numbers = list(range(begin, min(begin + WINDOW, operations)))
        mine.shuffle(numbers)
        for number in numbers:
            pending.append(submit(seed, number))
        while len(pending) > WINDOW:
            wrong += finish_one()
    while pending:
        wrong += finish_one()
    statistics = rabit.default_engine().statistics()
    assert statistics["backends"].keys() >= set(BACKENDS), statistics["backends"]
    classes = statistics["lane_classes"]
    assert all(classes[name]["issued"] > 0 for name in BACKENDS), classes
    assert not any(each["queued"] for each in classes.values()), classes
    print(f"wrong {wrong} of {operations}", flush=True)
    rabit.shutdown()


if __name__ == "__main__":
    main()
