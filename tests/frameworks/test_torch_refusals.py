"""What one rank refuses of a call is told to the others, who wait for it."""

from __future__ import annotations

import pytest

PREPARED = """
import numpy as np

rank = rabit.rank()
x = torch.ones(4)
wide = torch.ones(4, dtype=torch.complex32)


def outcome(call, bad):
    try:
        call(bad)
    except Exception as error:
        return [type(error).__name__, str(error)]
    return None
"""


CASES = """
calls = {
    "op": lambda bad: rabit.allreduce(x, name="w", op=99 if bad else rabit.Sum),
    "op in place": lambda bad: rabit.allreduce_async_(x, name="w", op=99 if bad else rabit.Sum).wait(),
    "average and op": lambda bad: rabit.allreduce(x, bad or None, "w", op=rabit.Sum),
    "dtype": lambda bad: rabit.allreduce(wide if bad else x, name="w"),
    "numpy": lambda bad: rabit.allreduce(np.ones(4) if bad else x, name="w"),
    "sparse": lambda bad: rabit.allreduce(x.to_sparse() if bad else x, name="w"),
    "factor": lambda bad: rabit.allreduce(x, name="w", prescale_factor="2" if bad else 1.0),
    "compression": lambda bad: rabit.allreduce(
        x, name="w", compression="fp16" if bad else rabit.Compression.none
    ),
    "op of a gradient": lambda bad: rabit.allreduce(
        x.clone().requires_grad_(), name="w", op=99 if bad else rabit.Sum
    ),
    "float splits": lambda bad: rabit.alltoall(x, torch.tensor([2.0, 2.0]) if bad else None, "w"),
    "scattered op": lambda bad: rabit.reducescatter(x, "w", op=rabit.Adasum if bad else rabit.Sum),
    "scattered compression": lambda bad: rabit.reducescatter(
        x, "w", "fp16" if bad else rabit.Compression.none
    ),
    "gathered": lambda bad: rabit.allgather(wide if bad else x, "w"),
    "broadcast": lambda bad: rabit.broadcast_(wide if bad else x.clone(), 0, "w"),
    "root": lambda bad: rabit.broadcast(x, "0" if bad else 0, "w"),
    "rooted": lambda bad: rabit.reduce(wide if bad else x, 0, "w"),
    "rooted op": lambda bad: rabit.reduce(x, 0, "w", op=rabit.Adasum if bad else rabit.Sum),
    "scatter": lambda bad: rabit.scatter(x, 0, [2.0, 2.0] if bad else None, "w"),
    "message": lambda bad: (
        rabit.send(wide if bad else x, 1, "w") if rank == 0 else rabit.recv(wide if bad else x.clone(), 0, "w")
    ),
    "group": lambda bad: rabit.grouped_allreduce([x, wide if bad else x], name="w"),
    "group in place": lambda bad: rabit.grouped_allreduce_([x.clone(), wide if bad else x.clone()], name="w"),
    "op of a group": lambda bad: rabit.grouped_allreduce([x, x], name="w", op=99 if bad else rabit.Sum),
    "group gathered": lambda bad: rabit.grouped_allgather([x, wide if bad else x], "w"),
    "group scattered": lambda bad: rabit.grouped_reducescatter([x, wide if bad else x], "w"),
    "adasum": lambda bad: rabit.allreduce(x.int() if bad else x, name="w", op=rabit.Adasum),
    "rows": lambda bad: rabit.sparse_allreduce_async(
        x.to_sparse(), "w", rabit.Max if bad else rabit.Sum
    ).wait(),
}
found = {}
for case, call in calls.items():
    for culprit in (0, 1):
        error = outcome(call, rank == culprit)
        after = outcome(call, False)
        found[f"{case} {culprit}"] = [error, after]
report(found)
"""


def test_every_operation_tells_of_its_refusals(on_ranks):
    results = on_ranks(2, PREPARED + CASES, RABIT_STALL_ABORT="5")

    for case in results[0]:
        culprit = int(case[-1])
        assert None not in [each[case][0] for each in results], case
        (own, _), (other, message) = results[culprit][case][0], results[1 - culprit][case][0]
        assert own in ("InvalidArgument", "Unsupported", "TypeError", "AttributeError"), case
        assert other == "InvalidArgument", (case, message)
        assert f"rank {culprit} refused it: " in message, (case, message)
        assert [each[case][1] for each in results] == [None, None], case


@pytest.mark.parametrize(
    "call",
    [
        "rabit.allreduce(value)",
        "rabit.allreduce(value, compression='fp16' if value is wide else rabit.Compression.none)",
        "rabit.grouped_allreduce([value, value])",
        "rabit.reducescatter(value)",
        "rabit.gather(value, 0)",
        "rabit.send(value, 1) if rank == 0 else rabit.recv(value.clone(), 0)",
    ],
)
def test_a_refused_call_without_a_name_takes_its_number(on_ranks, call):
    results = on_ranks(
        2,
        PREPARED
        + f"""
def call(bad):
    value = wide if bad else x
    return {call}

report([outcome(call, rank == culprit) for culprit in (1, 2, 0, 2)])
""",
        RABIT_STALL_ABORT="5",
    )

    for rank, (first, second, third, fourth) in enumerate(results):
        assert ("rank 1 refused it" in first[1]) == (rank == 0), first
        assert ("rank 0 refused it" in third[1]) == (rank == 1), third
        assert second is None
        assert fourth is None


@pytest.mark.parametrize("is_grouped", [False, True])
def test_adasum_against_a_sum_is_a_mismatch(on_ranks, is_grouped):
    results = on_ranks(
        2,
        PREPARED
        + """
def call(bad):
    op = rabit.Adasum if bad else rabit.Sum
    return rabit.grouped_allreduce([x, x], name="w", op=op) if GROUPED else rabit.allreduce(x, name="w", op=op)

report([outcome(call, rank == 1), outcome(call, False), outcome(call, True)])
""".replace("GROUPED", str(is_grouped)),
        RABIT_STALL_ABORT="5",
    )

    for mismatch, plain, adaptive in results:
        assert mismatch[0] == "Mismatch"
        assert all(word in mismatch[1] for word in ("rank 0", "allreduce", "rank 1", "alltoall"))
        assert plain is None
        assert adaptive is None
