"""Ordered operations on torch tensors."""

from __future__ import annotations


def test_every_ordered_call_gives_the_right_values(on_ranks):
    results = on_ranks(
        2,
        """
rank, size = rabit.rank(), rabit.size()
wrong = []


def expect(what, found, wanted, target):
    if found is not target or found.tolist() != wanted:
        wrong.append([what, str(found)])


for dtype in (torch.int32, torch.float16, torch.bfloat16, torch.float32, torch.float64):
    mine = torch.tensor([1, rank + 1]).to(dtype)
    expect(f"sum {dtype}", rabit.ordered_allreduce_(mine, rabit.Sum), [2, 3], mine)
    mine = torch.tensor([rank, rank]).to(dtype)
    expect(f"broadcast {dtype}", rabit.ordered_broadcast_(mine, 1), [1, 1], mine)
    out = torch.zeros(4, dtype=dtype)
    mine = torch.tensor([rank, 5]).to(dtype)
    expect(f"allgather {dtype}", rabit.ordered_allgather_into(out, mine), [0, 5, 1, 5], out)
    out, mine = torch.zeros(1, dtype=dtype), torch.tensor([2, 4]).to(dtype)
    expect(f"reducescatter {dtype}", rabit.ordered_reducescatter_into(out, mine, rabit.Max), [2 + 2 * rank], out)
    out, mine = torch.zeros(2, dtype=dtype), torch.tensor([10 * rank, 10 * rank + 1]).to(dtype)
    expect(f"alltoall {dtype}", rabit.ordered_alltoall_into(out, mine), [rank, 10 + rank], out)
weight = torch.nn.Parameter(torch.tensor([1.0 + 2 * rank]))
expect("mean of a parameter", rabit.ordered_allreduce_(weight), [2.0], weight)
alone = rabit.add_process_set([rabit.size() - 1])
if alone.included():
    rabit.ordered_barrier(alone)
rabit.ordered_barrier(timeout=30.0)
report(wrong)
""",
    )

    assert results == [[]] * 2


def test_what_cannot_work_is_refused_and_the_engine_goes_on(on_ranks):
    results = on_ranks(
        2,
        """
texts = []
for call in (
    lambda: rabit.ordered_allreduce_(torch.ones(4, 4).t()[:, ::2]),
    lambda: rabit.ordered_allreduce_(torch.ones(2), rabit.Adasum),
    lambda: rabit.ordered_broadcast_([1.0], 0),
    lambda: rabit.ordered_allgather_into(torch.ones(4, dtype=torch.float64), torch.ones(2)),
    lambda: rabit.ordered_allreduce_(torch.ones(2, dtype=torch.complex32)),
):
    try:
        call()
        texts.append("nothing")
    except (rabit.InvalidArgument, rabit.Unsupported) as error:
        texts.append(str(error))
after = rabit.ordered_allreduce_(torch.ones(2), rabit.Sum).tolist()
report([texts, after])
""",
    )

    for texts, after in results:
        for text, words in zip(
            texts,
            [
                ("ordered allreduce on rank", "(4, 2)", "contiguous"),
                ("Adasum", "ordered allreduce"),
                ("list", "ordered broadcast"),
                ("float32", "float64"),
                ("complex32", "ordered allreduce"),
            ],
            strict=True,
        ):
            assert all(word in text for word in words), text
        assert after == [2.0, 2.0]


def test_calls_that_differ_end_in_mismatch(on_ranks):
    results = on_ranks(
        2,
        """
try:
    rabit.ordered_allreduce_(torch.ones(2 + rabit.rank()), rabit.Sum, timeout=20.0)
    report("nothing")
except rabit.Mismatch as error:
    report(str(error))
wait_for_all()
os._exit(0)  # The engine has ended, and shutdown() would say so again.
""",
    )

    for text in results:
        assert "2 elements" in text and "3 elements" in text, text
