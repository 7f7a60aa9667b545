"""reduce, gather, scatter, send and recv on torch tensors."""

from __future__ import annotations

import pytest


def test_reduce_reaches_the_root_alone_in_every_dtype(on_ranks):
    results = on_ranks(
        3,
        """
rank, size = rabit.rank(), rabit.size()
wrong = []
for dtype in (torch.uint8, torch.int16, torch.int64, torch.float16, torch.bfloat16, torch.float64):
    mine = torch.tensor([[1, 2], [3, rank + 1]]).to(dtype)
    total = rabit.reduce(mine, 1, name=f"sum.{dtype}", op=rabit.Sum)
    want = torch.tensor([[3, 6], [9, 6]]).to(dtype)
    if (total is None) != (rank != 1) or (rank == 1 and not torch.equal(total, want)):
        wrong.append([str(dtype), str(total)])
    if mine.tolist() != [[1, 2], [3, rank + 1]]:
        wrong.append([str(dtype), "changed"])
flags = torch.tensor([True, False, rank == 0], requires_grad=False)
either = rabit.reduce(flags, 0, op=rabit.BitwiseOr)
if rank == 0 and (either.dtype != torch.bool or either.tolist() != [True, False, True]):
    wrong.append(["bool", str(either)])
handle = rabit.reduce_async(torch.tensor(rank + 1.0, requires_grad=True), 2, prescale_factor=2.0)
mean = rabit.synchronize(handle)
if rank == 2 and (mean.shape != () or mean.item() != 4.0 or mean.requires_grad):
    wrong.append(["scalar mean", str(mean)])
report(wrong)
""",
    )

    assert results == [[]] * 3


def test_gather_and_scatter_divide_rows_among_ranks(on_ranks):
    results = on_ranks(
        3,
        """
rank, size = rabit.rank(), rabit.size()
answers = {}
rows = torch.full((rank + 1, 2), float(rank), dtype=torch.bfloat16).t().contiguous().t()
found = rabit.gather(rows, 2, name="rows")
answers["gather"] = None if found is None else [str(found.dtype), found[:, 0].tolist()]
found = rabit.gather_async(torch.tensor(rank), 0).wait()
answers["scalars"] = None if found is None else found.tolist()
whole = torch.arange(12).reshape(6, 2) if rank == 1 else torch.empty(0, 2, dtype=torch.int64)
answers["even"] = rabit.scatter(whole, 1).tolist()
splits = torch.tensor([3, 1, 2]) if rank == 1 else None
answers["uneven"] = rabit.scatter(whole, 1, splits, name="uneven")[:, 0].tolist()
answers["none"] = list(rabit.scatter_async(whole, 1, [0, 6, 0]).wait().shape)
report(answers)
""",
    )

    assert [each["gather"] for each in results] == [
        None,
        None,
        ["torch.bfloat16", [0.0, 1.0, 1.0, 2.0, 2.0, 2.0]],
    ]
    assert [each["scalars"] for each in results] == [[0, 1, 2], None, None]
    assert [each["even"] for each in results] == [
        [[0, 1], [2, 3]],
        [[4, 5], [6, 7]],
        [[8, 9], [10, 11]],
    ]
    assert [each["uneven"] for each in results] == [[0, 2, 4], [6], [8, 10]]
    assert [each["none"] for each in results] == [[0, 2], [6, 2], [0, 2]]


def test_messages_arrive_in_order_in_any_layout(on_ranks):
    """Named and numbered, from torch to torch and to NumPy, into memory with gaps."""
    results = on_ranks(
        2,
        """
import numpy
import rabit as plain
rank = rabit.rank()
answers = {}
if rank == 0:
    rabit.send(torch.tensor([1.0, 2.0]), 1)
    handles = [rabit.send_async(torch.tensor([float(n)] * 2, dtype=torch.bfloat16), 1) for n in (3, 4)]
    rabit.send(torch.arange(6).reshape(2, 3).t(), 1, name="columns")
    rabit.send(torch.tensor([7, 8]), 1, name="numpy")
    answers["sent"] = [rabit.synchronize(handle) for handle in handles]
else:
    target = torch.zeros(2, requires_grad=True)
    answers["same"] = rabit.recv(target, 0) is target
    answers["first"] = target.tolist()
    pair = [torch.zeros(2, dtype=torch.bfloat16) for _ in range(2)]
    handles = [rabit.recv_async(each, 0) for each in pair]
    answers["numbered"] = [rabit.synchronize(handle).tolist() for handle in handles]
    gaps = torch.zeros(3, 4, dtype=torch.int64)
    rabit.recv(gaps[:, ::2], 0, name="columns")
    answers["gaps"] = gaps.tolist()
    answers["numpy"] = plain.recv(numpy.zeros(2, numpy.int64), 0, name="numpy").tolist()
report(answers)
""",
    )

    assert results[0] == {"sent": [None, None]}
    assert results[1] == {
        "same": True,
        "first": [1.0, 2.0],
        "numbered": [[3.0, 3.0], [4.0, 4.0]],
        "gaps": [[0, 0, 3, 0], [1, 0, 4, 0], [2, 0, 5, 0]],
        "numpy": [7, 8],
    }


def test_process_sets_take_global_roots(on_ranks):
    results = on_ranks(
        3,
        """
ends = rabit.add_process_set([0, 2])
rank, answer = rabit.rank(), None
if ends.included():
    total = rabit.reduce(torch.tensor([rank]), 2, op=rabit.Sum, process_set=ends)
    rows = rabit.gather(torch.tensor([rank]), 2, process_set=ends)
    mine = rabit.scatter(torch.tensor([5, 6]), 2, process_set=ends)
    answer = [None if each is None else each.tolist() for each in (total, rows, mine)]
report(answer)
""",
    )

    assert results == [[None, None, [5]], None, [[2], [0, 2], [6]]]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("rabit.reduce(torch.ones(2), 5, name='w')", ["reduce.w", "root_rank is 5", "[0, 1]"]),
        ("rabit.reduce(torch.ones(2), 0, op=rabit.Adasum)", ["Adasum", "allreduce alone"]),
        ("rabit.gather([1.0], 0, name='w')", ["gather.w", "list", "torch.Tensor"]),
        ("rabit.scatter(torch.ones(3), rank, name='w')", ["scatter.w", "3 rows", "splits"]),
        ("rabit.scatter(torch.ones(2), rank, [1.0, 1.0], name='w')", ["[1.0, 1.0]", "integers"]),
        ("rabit.scatter(torch.ones(2), rank, torch.ones(2))", ["torch.float32", "integers"]),
        ("rabit.alltoall(torch.ones(2), [1.5, 0.5], name='w')", ["[1.5, 0.5]", "integers"]),
        ("rabit.send(torch.ones(2), rank)", ["send", "this rank itself"]),
        ("rabit.recv(torch.ones(2).to_sparse(), 1 - rank, 'w')", ["'w'", "to_dense"]),
    ],
)
def test_what_cannot_work_is_refused_before_it_is_sent(on_ranks, call, words):
    script = f"""
rank = rabit.rank()
try:
    {call}
    report("nothing")
except (rabit.InvalidArgument, rabit.Unsupported) as error:
    report(str(error))
"""
    for text in on_ranks(2, script):
        assert all(word in text for word in words), text


def test_ranks_that_disagree_about_the_root_are_told(on_ranks):
    script = """
try:
    rabit.reduce(torch.ones(2), rabit.rank(), name="w")
    report("nothing")
except rabit.Mismatch as error:
    report(str(error))
"""
    for text in on_ranks(2, script):
        assert "reduce.w" in text and "root" in text, text
