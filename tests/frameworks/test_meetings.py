"""Ranks compare what they train by before the first gradients, and meet again after a join."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

SETUP = """
rank = rabit.rank()

def make(**arguments):
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(4, 300), torch.nn.Linear(300, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    return model, rabit.DistributedOptimizer(optimizer, model.named_parameters(), **arguments)

def train(model, optimizer, steps, seed=0):
    chance = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(5, 4, generator=chance)).square().mean().backward()
        optimizer.step()
"""


@pytest.mark.parametrize(
    ("here", "there", "text"),
    [
        (None, "'topk:ratio=0.1'", "rank 0 by no strategy, rank 1 by 'topk:ratio=0.1'"),
        ("'local:every=4'", "'local:every=5'", "by 'local:every=4', rank 1 by 'local:every=5'"),
        ("Synchronous(PowerSGD(rank=1))", "'ef21'", "by Synchronous(exchange="),
        ("'onebit-adam'", "'onebit-lamb'", "by 'onebit-adam', rank 1 by 'onebit-lamb'"),
    ],
)
def test_other_methods_are_a_mismatch_on_every_rank(on_ranks, here, there, text):
    results = on_ranks(
        2,
        SETUP
        + f"""
from rabit.strategies import PowerSGD, Synchronous

model, optimizer = make(strategy=({here}, {there})[rank])
try:
    train(model, optimizer, 1)
    report("trained")
except rabit.Mismatch as error:
    report([error.rank, str(error)])
""",
    )

    for rank, said in results:
        assert rank == 1
        assert "optimizers train by different methods: rank 0 " in said and text in said


def test_what_ranks_set_for_themselves_and_how_a_method_was_made_do_not_count(on_ranks):
    results = on_ranks(
        2,
        SETUP
        + """
from rabit.strategies import AnyBatch, make as named

method = AnyBatch()
method.samples = rank + 1
model, optimizer = make(strategy=method)
train(model, optimizer, 2)
model, optimizer = make(strategy="topk" if rank else named("topk"))
train(model, optimizer, 2)
report("trained")
""",
    )

    assert results == ["trained"] * 2


def test_a_rank_whose_first_epoch_is_empty_trains_in_the_next(on_ranks):
    results = on_ranks(
        2,
        SETUP
        + """
for overlap in ("backward", "next-forward"):
    model, optimizer = make(overlap=overlap)
    for epoch in range(3):
        train(model, optimizer, 0 if rank == 1 and epoch == 0 else 3, epoch)
        root = rabit.join()
        optimizer.flush()
        rabit.broadcast_parameters(model.state_dict(), root)
        rabit.broadcast_optimizer_state(optimizer, root)
report([each.tolist() for each in model.parameters()])
""",
    )

    assert results[0] == results[1]


def test_methods_go_on_from_the_same_step_after_a_join(on_ranks):
    """Random places are chosen by the step: other ones on each rank would be added up."""
    results = on_ranks(
        2,
        SETUP
        + """
model, optimizer = make(strategy="randomk:ratio=0.25")
train(model, optimizer, 5 - 2 * rank)
rabit.broadcast_parameters(model.state_dict(), rabit.join())
steps = []
for _ in range(2):
    train(model, optimizer, 1)
    steps.append(optimizer._rabit_reducer.method.step)
gradients = [p.grad.tolist() for p in model.parameters()]
report([steps, gradients, [p.tolist() for p in model.parameters()]])
""",
    )

    assert results[0][0] == results[1][0] == [6, 7]
    assert results[0] == results[1]


def test_ranks_that_come_to_two_optimizers_in_another_order_do_not_wait_for_each_other(on_ranks):
    results = on_ranks(
        2,
        SETUP
        + """
heads = [torch.nn.Linear(4, 1) for _ in range(2)]
optimizers = [
    rabit.DistributedOptimizer(
        torch.optim.SGD(head.parameters(), lr=0.1), head.named_parameters(), find_unused_parameters=True)
    for head in heads
]
for step in range(3):
    for optimizer in optimizers:
        optimizer.zero_grad()
    first, second = (heads[rank], heads[1 - rank])
    first(torch.ones(1, 4)).sum().backward()
    second(torch.ones(1, 4)).sum().backward()
    for optimizer in optimizers:
        optimizer.step()
for head in heads:
    rabit.broadcast_parameters(head.state_dict(), 0)
report("trained")
""",
    )

    assert results == ["trained"] * 2


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("strategy='demo:chunk=8,count=2'", "'weight' has shape (40, 12) on rank 0 and (44, 12) on rank 1"),
        ("strategy='rowsparse:small=0'", "'weight' has shape (40, 12) on rank 0 and (44, 12) on rank 1"),
        ("row_sparse=['weight']", "shapes differ: [40, 12] with 1 sparse dimension"),
    ],
)
def test_other_shapes_are_a_mismatch_on_every_rank(on_ranks, arguments, text):
    """Where parameters were not broadcast: rows that one rank lacks were left out silently."""
    results = on_ranks(
        2,
        f"""
table = torch.nn.Embedding(40 + 4 * rabit.rank(), 12)
optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
optimizer = rabit.DistributedOptimizer(optimizer, table.named_parameters(), {arguments})
try:
    for step in range(2):
        table(torch.tensor([3, 39])).sum().backward()
        optimizer.step()
    report("trained")
except rabit.Mismatch as error:
    report(str(error))
""",
    )

    if "row_sparse" in arguments:
        assert text in results[0] and "[44, 12]" in results[0]
        assert "[44, 12] with 1 sparse dimension here, [40, 12]" in results[1]
    else:
        assert all(text in said for said in results)
