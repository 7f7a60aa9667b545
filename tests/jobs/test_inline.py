"""Small blocking collectives whose data goes with the negotiation: when, and that nothing else changes."""

from __future__ import annotations

import pytest
from support.processes import assert_all_ended_well, run_processes

CALLS = """
import os
import numpy as np
import rabit

rabit.init()
rank, size = rabit.rank(), rabit.size()
for step in range(5):
    loss = rabit.allreduce(np.array([rank + step], np.float32), name="loss", op=rabit.Average)
    np.testing.assert_array_equal(loss, [(size - 1) / 2 + step])
    unnamed = rabit.allreduce(np.full((2, 3), rank), op=rabit.Max)
    np.testing.assert_array_equal(unnamed, np.full((2, 3), size - 1))
    medium = rabit.allreduce(np.full(400, 1.0), name="medium", op=rabit.Sum)
    np.testing.assert_array_equal(medium, np.full(400, size))
    large = rabit.allreduce(np.full(9000, 1.0), name="large", op=rabit.Sum)
    np.testing.assert_array_equal(large, np.full(9000, size))
    handle = rabit.allreduce_async(np.full(3, 1.0), name="asynchronous", op=rabit.Sum)
    np.testing.assert_array_equal(rabit.synchronize(handle), np.full(3, size))
expected = int(os.environ["EXPECTED"])
assert rabit.statistics()["inlined"] == expected, rabit.statistics()["inlined"]
"""


OTHER_KINDS = """
import os
import numpy as np
import rabit

rabit.init()
rank, size = rabit.rank(), rabit.size()
calls = 0
for step in range(4):
    mine = np.arange(size * 2, dtype=np.float32) + 100 * rank + step
    every = [np.arange(size * 2, dtype=np.float32) + 100 * each + step for each in range(size)]
    share = slice(2 * rank, 2 * rank + 2)
    found = {
        "broadcast": (rabit.broadcast(mine, 1, name="b"), every[1]),
        "broadcast_": (rabit.broadcast_(mine.copy(), 1, name="c"), every[1]),
        "allgather": (rabit.allgather(mine, name="g"), np.concatenate(every)),
        "rows": (rabit.allgather(mine[: rank + 1], name="h"),
                 np.concatenate([part[: index + 1] for index, part in enumerate(every)])),
        "reducescatter": (rabit.reducescatter(mine, name="r", op=rabit.Sum), sum(every)[share]),
        "alltoall": (rabit.alltoall(mine, name="a"), np.concatenate([part[share] for part in every])),
        "reduce": (rabit.reduce(mine, 1, name="d", op=rabit.Sum), sum(every) if rank == 1 else None),
    }
    for what, (result, expected) in found.items():
        np.testing.assert_array_equal(result, expected, err_msg=what)
    calls += len(found)
    # These are exchanged: too large for an agreement, cut unevenly, of one rank, of no rank.
    large = rabit.allgather(np.full(400, rank), name="large")
    np.testing.assert_array_equal(large, np.repeat(np.arange(size), 400))
    rows, splits = rabit.alltoall(mine[:1], [1] + [0] * (size - 1), name="cut")
    assert len(rows) == (size if rank == 0 else 0), rows
    assert rabit.allgather(mine[:0] if rank else mine, name="one").tolist() == every[0].tolist()
    rabit.barrier()
    assert rabit.statistics()["inlined"] == (calls if os.environ["EXPECTED"] == "all" else 0)
for step in range(3):  # an agreement for a small object; one more exchange for what is larger
    before = rabit.statistics()["inlined"]
    for count in (1, 9000):
        said = {"rank": rank, "step": step, "text": "x" * count}
        assert rabit.broadcast_object(said, 2)["rank"] == 2
        found = rabit.allgather_object(said)
        assert [each["rank"] for each in found] == list(range(size)) and found[-1]["text"] == "x" * count
    if os.environ["EXPECTED"] == "all":
        assert rabit.statistics()["inlined"] - before == 3, rabit.statistics()["inlined"] - before
"""


@pytest.mark.parametrize("transport", ["tcp", "shm"])
@pytest.mark.parametrize("expected", ["all", "none"])
def test_every_kind_gives_the_same_with_and_without_its_data_along(transport, expected, tmp_path):
    environ = {"EXPECTED": expected, "RABIT_LINK_MODEL": "fixed", "RABIT_TRANSPORT": transport}
    if expected == "none":
        environ["RABIT_INLINE_BYTES"] = "0"
    assert_all_ended_well(run_processes(3, OTHER_KINDS, tmp_path, environ))


def run(tmp_path, size, expected, by_rank=None, **environ):
    environ = {"EXPECTED": str(expected), "RABIT_LINK_MODEL": "fixed", **environ}
    assert_all_ended_well(run_processes(size, CALLS, tmp_path, environ, by_rank))


# The links of the fixed model make it cheaper for up to 4 KiB.
@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_small_blocking_calls_take_their_data_along(transport, tmp_path):
    run(tmp_path, 3, 15, RABIT_TRANSPORT=transport)


def test_no_more_is_taken_along_than_the_user_allows(tmp_path):
    run(tmp_path, 3, 10, RABIT_INLINE_BYTES="3199")


@pytest.mark.parametrize(
    "rule",
    [{"RABIT_ALLREDUCE_ALGORITHM": "ring"}, {"RABIT_ROUTE": "allreduce:*:builtin/ring"}],
    ids=["algorithm", "route"],
)
def test_an_algorithm_that_is_named_runs_above_1_KiB(rule, tmp_path):
    run(tmp_path, 3, 10, RABIT_TRANSPORT="tcp", **rule)


@pytest.mark.parametrize(
    "environ", [{"RABIT_INLINE_BYTES": "0"}, {"RABIT_COORDINATION": "tree"}], ids=["off", "tree"]
)
def test_the_data_stays_where_it_is(environ, tmp_path):
    run(tmp_path, 4, 0, RABIT_COORDINATION_FAN_OUT="2", **environ)


def test_ranks_with_other_limits_exchange_as_usual(tmp_path):
    run(tmp_path, 3, 5, by_rank={1: {"RABIT_INLINE_BYTES": "8"}})
    run(tmp_path, 3, 10, RABIT_TRANSPORT="tcp", by_rank={1: {"RABIT_INLINE_BYTES": "2048"}})
