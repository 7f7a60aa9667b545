"""Ranks whose schedules differ, as processes: nothing that does not belong together is added."""

from __future__ import annotations

import pytest

# Settings that must be equal are compared at start, so the script hides them from the comparison.
DIFFER = """
import os
import numpy as np

if os.environ["RABIT_RANK"] == "1":
    os.environ.update({variables!r})
import rabit
from rabit.config.config import Config
from rabit.engine.current import current_engine
from rabit.engine.tensor import view_output

Config.equal_settings = lambda self: ""
rabit.init()
arrays = [np.full(2000, i + 1.0, dtype=np.float32) for i in range(10)]
requests = []
for i, array in enumerate(arrays):
    view = view_output(array)
    requests.append(rabit.Request(rabit.Kind.ALLREDUCE, f"t{{i}}", view, view, priority=i))
handles = current_engine().submit(requests)  # in one announcement, so that all are scheduled at once
mismatches = 0
for handle in handles:
    try:
        handle.wait(20)
    except rabit.Mismatch as error:
        mismatches += 1
        print(f"MISMATCH {{error.rank}}: {{error}}", flush=True)
for i, array in enumerate(arrays):
    assert set(array.tolist()) <= {{i + 1.0, 2 * (i + 1.0)}}, (i, set(array.tolist()))
assert mismatches > 0
"""

ORDERED = """
import numpy as np
import rabit

rabit.init()
array = np.full(4 + rabit.rank(), 1.0, dtype=np.float32)
try:
    rabit.ordered_allreduce_(array, timeout=20)
except rabit.Mismatch as error:
    print(f"MISMATCH {error.rank}: {error}", flush=True)
assert set(array.tolist()) == {1.0}
"""


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("variables", [{"RABIT_SCHEDULER": "fifo"}, {"RABIT_FUSION_BYTES": "0"}])
def test_buckets_of_other_content_are_never_added(job, transport, variables):
    started = job(2, DIFFER.format(variables=variables), RABIT_TRANSPORT=transport)

    assert started.wait(timeout=60) == [0, 0], started.output(0) + started.output(1)
    for rank in range(2):
        assert "MISMATCH 1: " in started.output(rank), started.output(rank)
        assert "Give every rank the same" in started.output(rank)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_ordered_calls_of_different_size_are_never_added(job, transport):
    started = job(2, ORDERED, RABIT_TRANSPORT=transport)

    assert started.wait(timeout=60) == [0, 0], started.output(0) + started.output(1)
    for rank in range(2):
        text = started.output(rank)
        assert "MISMATCH" in text, text
        assert "4 elements" in text and "5 elements" in text, text


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_rank_that_leaves_at_once_after_an_abort_has_told_why(job, transport):
    script = """
import os
import numpy as np
import rabit
from rabit.engine.current import current_engine

rabit.init()
data = np.ones(1 << 20, dtype=np.float32)
try:
    for step in range(10_000):
        if rabit.rank() == 1 and step == 20:
            current_engine().abort("ValueError: no such file")
            os._exit(7)
        rabit.allreduce_(data, name="x")
except rabit.PeerLost as error:
    print(f"LOST {error.rank}: {error}", flush=True)
"""
    started = job(3, script, RABIT_TRANSPORT=transport)

    assert started.wait(timeout=60) == [0, 7, 0], started.output(0) + started.output(2)
    for rank in (0, 2):
        text = started.output(rank)
        assert "LOST 1: " in text and "rank 1 is ending after ValueError: no such file" in text, (
            text
        )
