"""Operations of several rounds: what `done` says, and ranks that wait in different orders."""

from __future__ import annotations

import pytest

TIMES_OUT = """
def times_out(handle):
    try:
        handle.wait(0.05)
    except rabit.TimedOut:
        return True
    return False
"""


@pytest.mark.parametrize(
    "start",
    [
        "rabit.sparse_allreduce_async(torch.eye(3).to_sparse(), 's', op=rabit.Sum)",
        "rabit.allreduce_async(torch.eye(3), name='a', op=rabit.Adasum)",
    ],
    ids=["sparse", "adasum"],
)
def test_a_handle_is_done_when_nothing_is_left_to_wait_for(on_ranks, start):
    """The second rank starts only after the first has looked and has waited for a while."""
    found = on_ranks(
        2,
        TIMES_OUT
        + f"""
early = [False, True]
if rabit.rank() == 0:
    handle = {start}
    early = [rabit.poll(handle), times_out(handle)]
rabit.barrier()
if rabit.rank() == 1:
    handle = {start}
handle.wait()
report([*early, rabit.poll(handle)])
""",
        timeout=40,
    )

    assert found == [[False, True, True]] * 2


def test_adasum_handles_may_be_waited_for_in_any_order(on_ranks):
    found = on_ranks(
        2,
        """
handles = [
    rabit.allreduce_async(torch.full((3,), 1.0 + n), name=f"a{n}", op=rabit.Adasum) for n in range(3)
]
order = handles if rabit.rank() else handles[::-1]
for handle in order:
    handle.wait()
report([handle.wait().tolist() for handle in handles])
""",
        timeout=40,
    )

    assert found == [[[1.0] * 3, [2.0] * 3, [3.0] * 3]] * 2


def test_the_average_of_sparse_integers_truncates_like_that_of_dense_ones(on_ranks):
    found = on_ranks(
        2,
        """
value = torch.tensor([-3 if rabit.rank() else 0, 5, 0])
sparse = rabit.sparse_allreduce_async(value.to_sparse(), "s", op=rabit.Average).wait()
report([sparse.to_dense().tolist(), rabit.allreduce(value, op=rabit.Average).tolist()])
""",
    )

    assert found == [[[-1, 5, 0], [-1, 5, 0]]] * 2


@pytest.mark.parametrize(
    "arguments",
    ["row_sparse=['0.weight', '1.weight'], overlap='next-forward'", "overlap='reduce-scatter'"],
)
def test_gradients_may_be_read_in_any_order_before_the_step(on_ranks, arguments):
    found = on_ranks(
        2,
        f"""
torch.manual_seed(1)
tables = torch.nn.ModuleList(torch.nn.Embedding(8000, 5) for _ in range(2)).double()
optimizer = rabit.DistributedOptimizer(
    torch.optim.SGD(tables.parameters(), lr=1.0), tables.named_parameters(), {arguments}
)
sums = []
for step in range(3):
    rows = torch.tensor([step, 10 + rabit.rank()])
    sum(table(rows).sum() for table in tables).backward()
    order = list(tables) if rabit.rank() else list(tables)[::-1]
    for table in order:
        sums.append(float(table.weight.grad.sum()))
    optimizer.step()
    optimizer.zero_grad()
report(sums)
""",
        timeout=40,
    )

    assert found == [[10.0] * 6] * 2


def test_sparse_tensors_of_other_shapes_or_ops_are_told_on_every_rank(on_ranks):
    """Rows of the larger table would be written beyond the end of the smaller one."""
    found = on_ranks(
        2,
        """
rank = rabit.rank()
def told(rows, columns, op, name, **more):
    value = torch.sparse_coo_tensor([[rows - 1]], torch.ones(1, columns), (rows, columns))
    try:
        return str(rabit.sparse_allreduce_async(value, name, op, **more).wait().to_dense()[-1].tolist())
    except rabit.Mismatch as error:
        return f"{error.rank}: {error}"

swapped = rabit.ProcessSet([1, 0])
rabit.add_process_set(swapped)
report([
    told(4 + 1000 * rank, 2, rabit.Sum, "table"),
    told(4, 2, [rabit.Average, rabit.Sum][rank], "op"),
    told(4 + rank, 2, rabit.Sum, "in a set", process_set=swapped),
    told(4, 2 + rank, rabit.Sum, "row"),
    told(4, 2, rabit.Average, "table"),
])
""",
    )

    for rank, (shape, op, in_set, row, good) in enumerate(found):
        other = 1 - rank
        shapes = ["[4, 2] with 1 sparse dimension", "[1004, 2] with 1 sparse dimension"]
        assert shape == (
            f"{other}: sparse allreduce 'table' on rank {rank}: shapes differ: {shapes[rank]} here, "
            f"{shapes[other]} on rank {other}. Build the model the same way on every rank (errors.md#mismatch)."
        )
        ops = ["average", "sum"]
        assert op == (
            f"{other}: sparse allreduce 'op' on rank {rank}: reduce operations differ: {ops[rank]} here, "
            f"{ops[other]} on rank {other}. Pass the same op on every rank (errors.md#mismatch)."
        )
        assert (
            f"'in a set' on rank {rank}: shapes differ" in in_set and f"on rank {other}." in in_set
        )
        assert "'allgather.row.values'" in row
        assert good == "[1.0, 1.0]"


@pytest.mark.parametrize("name", ["synchronize", "poll"])
def test_what_is_no_handle_is_refused(name):
    rabit_torch = pytest.importorskip("rabit_torch")

    with pytest.raises(rabit_torch.InvalidArgument, match=f"{name}: 3 of type int is no handle"):
        getattr(rabit_torch, name)(3)
