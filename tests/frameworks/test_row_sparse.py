"""row_sparse: only the touched rows of a dense gradient travel, with the values of the dense exchange."""

from __future__ import annotations

import pytest

SETUP = """
import warnings
from torch import nn

rank, size = rabit.rank(), rabit.size()


class Net(nn.Module):
    def __init__(self, sparse=False):
        super().__init__()
        self.table = nn.Embedding(400, 16, sparse=sparse)
        self.head = nn.Linear(16, 3)

    def forward(self, words):
        return self.head(self.table(words))


def train(steps=4, passes=1, skip=-1, tied=False, dense=False, lr=0.1, momentum=0.9, sparse=False, **arguments):
    torch.manual_seed(3)
    model = Net(sparse)
    optimizer = rabit.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum), model.named_parameters(),
        backward_passes_per_step=passes, **arguments)
    said = []
    for step in range(steps):
        for part in range(passes):
            generator = torch.Generator().manual_seed(100 * step + 10 * part + rank)
            words = torch.randint(0, 400, (7 + rank,), generator=generator)
            hidden = model.head(torch.ones(2, 16)) if rank == skip and step == 1 else model(words)
            loss = hidden.square().mean()
            if tied:
                loss = loss + (torch.ones(2, 16) @ model.table.weight.t()).square().mean()
            if dense:
                loss = loss + model.table.weight.square().mean()
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                loss.backward()
                said += [str(w.message) for w in caught]
        optimizer.step()
        optimizer.zero_grad()
    optimizer.flush()
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()]), said


def gap(**arguments):
    plain = {key: value for key, value in arguments.items() if key != "row_sparse"}
    return (train(**plain)[0] - train(**arguments)[0]).abs().max().item()
"""


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_result_is_that_of_the_dense_exchange(on_ranks, ranks):
    results = on_ranks(
        ranks,
        SETUP
        + """
names = ["table.weight"]
found = {
    "average": gap(row_sparse=names),
    "sum": gap(row_sparse=names, op=rabit.Sum),
    "two passes": gap(row_sparse=names, passes=2),
    "unused on one rank": gap(row_sparse=names, skip=1),
    "next-forward": gap(row_sparse=names, overlap="next-forward"),
    "reduce-scatter": gap(row_sparse=names, overlap="reduce-scatter"),
    "found unused": gap(row_sparse=names, find_unused_parameters=True, skip=1),
    "tied": gap(row_sparse=names, tied=True),
    "all rows": gap(row_sparse=names, dense=True),
    "all large ones": gap(row_sparse=True),
}
half = {"compression": gap(row_sparse=names, compression=rabit.Compression.fp16)}
said = [text for text in train(row_sparse=names, dense=True)[1] if "row_sparse" in text]
sparse, dense = [train(sparse=each, skip=1, momentum=0.0)[0] for each in (True, False)]
found["sparse gradients, none on one rank"] = (sparse - dense).abs().max().item()
few = rabit.add_process_set([0, 1])  # Last: optimizers that only some ranks make shift the numbers.
if rank < 2:
    found["process set"] = gap(row_sparse=names, process_set=few)
report([found, half, said])
""",
    )

    for rank, (exact, half, said) in enumerate(results):
        assert max(exact.values()) < 1e-6, exact
        assert max(half.values()) < 1e-3, half
        assert len(said) == (1 if rank == 0 else 0)
        assert all("tied to an output" in text and "table.weight" in text for text in said)


@pytest.mark.parametrize(("dtype", "value"), [("float16", 40000.0), ("bfloat16", 3e38)])
def test_a_mean_of_rows_is_right_where_their_sum_leaves_the_type(on_ranks, dtype, value):
    results = on_ranks(
        3,
        f"""
table = torch.nn.Parameter(torch.zeros(400, 16, dtype=torch.{dtype}))
optimizer = rabit.DistributedOptimizer(
    torch.optim.SGD([table], lr=1.0), [("table", table)], row_sparse=["table"])
(table[3] * {value}).sum().backward()
optimizer.synchronize()
report([table.grad[3].tolist() == [float(torch.tensor({value}, dtype=torch.{dtype}))] * 16,
        int(table.grad.count_nonzero())])
""",
    )

    assert results == [[True, 16]] * 3


def test_names_and_operations_that_cannot_work_are_refused(on_ranks):
    results = on_ranks(
        2,
        SETUP
        + """
def refusal(**arguments):
    model = Net()
    try:
        rabit.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters(), **arguments)
    except rabit.InvalidArgument as error:
        return str(error)


report([
    refusal(row_sparse=["tabel.weight"]),
    refusal(row_sparse=["head.bias"]),
    refusal(row_sparse=["table.weight"], op=rabit.Max),
])
""",
    )

    for unknown, flat, largest in results:
        assert "'tabel.weight'" in unknown
        assert "at least two dimensions" in flat
        assert "Average and Sum" in largest


UNUSED = """
import warnings
from torch import nn

def train(used, sparse, **arguments):
    # used(step): the tables of this step.  The first parameter is used on no rank.
    torch.manual_seed(0)
    unused, head = nn.Linear(2, 1), nn.Linear(2, 1)
    tables = nn.ModuleList(nn.Embedding(6, 2, sparse=sparse) for _ in range(2))
    model = nn.ModuleList([unused, tables, head])
    optimizer = rabit.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.5), model.named_parameters(), **arguments
    )
    for step in range(3):
        optimizer.zero_grad()
        inputs = torch.ones(3, 2)
        for index in used(step):
            inputs = inputs + tables[index](torch.tensor([0, step, rabit.rank()]))
        head(inputs).sum().backward()
        optimizer.step()
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])

def gap(used, **arguments):
    return (train(used, True, **arguments) - train(used, False, **arguments)).abs().max().item()

rank, last = rabit.rank(), rabit.rank() == rabit.size() - 1
"""


def test_a_rank_does_not_use_a_sparse_table_in_its_first_step(on_ranks):
    """It does not know yet that the gradient is sparse on the others, who wait for its rows in backward()."""
    results = on_ranks(
        3,
        UNUSED
        + """
warnings.simplefilter("error")  # Nobody waits for as long as a stall takes.
def first(step):
    return [] if last and step == 0 else [0, 1]

def second(step):  # The others do not use it in the first step either.
    return [] if step == 0 or (last and step == 1) else [0, 1]

found = {"first step": gap(first), "second step": gap(second)}
for overlap in ("none", "next-forward"):
    found[overlap] = gap(first, overlap=overlap)
found["found unused"] = gap(first, find_unused_parameters=True)
report(found)
""",
        timeout=60,
    )

    for found in results:
        assert found == {
            key: pytest.approx(0, abs=1e-6)
            for key in ("first step", "second step", "none", "next-forward", "found unused")
        }


def test_ranks_use_different_sparse_tables_in_the_first_step(on_ranks):
    results = on_ranks(
        2,
        UNUSED
        + """
warnings.simplefilter("ignore")
report(gap(lambda step: [rank] if step == 0 else [0, 1]))
""",
        timeout=60,
        RABIT_STALL_WARNING="0.05",
    )

    assert results == [pytest.approx(0, abs=1e-6)] * 2


def test_a_gradient_that_is_dense_on_one_rank_and_sparse_on_another_is_refused(on_ranks):
    results = on_ranks(
        2,
        """
table = torch.nn.Embedding(4, 2, sparse=rabit.rank() == 0)
optimizer = rabit.DistributedOptimizer(torch.optim.SGD(table.parameters(), lr=0.1), table.named_parameters())
try:
    table(torch.tensor([1])).sum().backward()
    report("nothing was refused")
except rabit.RabitError as error:
    report(f"{type(error).__name__} {error.rank}: {error}")
""",
        timeout=60,
    )

    assert results[1] == (
        "InvalidArgument 0: allreduce 'gradient.weight': rank 0 refused it: its gradient is sparse. Let it be sparse "
        "or dense on every rank, or pass sparse_as_dense=True"
    )
    assert results[0].startswith(
        "InvalidArgument 1: allgather 'allgather.gradient.weight.indices': rank 1 refused it"
    )
