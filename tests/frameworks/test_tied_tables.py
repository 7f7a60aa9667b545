"""row_sparse on a table that is tied to the output projection: its dense part leaves early."""

from __future__ import annotations

import pytest

SETUP = """
import contextlib, copy, io, pickle, warnings
from torch import nn
from torch.nn import functional

rank, size = rabit.rank(), rabit.size()
NAME = ["table.weight"]


class Net(nn.Module):
    def __init__(self, product="linear"):
        super().__init__()
        self.table = nn.Embedding(600, 16)
        self.middle = nn.Linear(16, 16)
        self.product = product

    def forward(self, words):
        hidden = torch.tanh(self.middle(self.table(words)))
        weight = self.table.weight
        if self.product == "linear":
            return functional.linear(hidden, weight)
        if self.product == "matmul":
            return hidden @ weight.T
        if self.product == "twice":
            return functional.linear(hidden, weight) + hidden @ weight.t()
        if self.product == "unknown":
            return (hidden[:, None, :] * weight).sum(2)
        assert self.product == "lookup"
        return hidden.repeat(1, 40)[:, :600]


def words_of(step, part):
    generator = torch.Generator().manual_seed(100 * step + 10 * part + rank)
    return torch.randint(0, 600, (2, 9 + rank), generator=generator)


def train(steps=5, passes=1, skip=-1, no_head=-1, unsynced=0, product="linear", kind="sgd",
          look=None, set_to_none=True, before_step=None, **arguments):
    torch.manual_seed(3)
    model = Net(product)
    make = {"sgd": lambda p: torch.optim.SGD(p, lr=0.5, momentum=0.9),
            "adam": lambda p: torch.optim.Adam(p, lr=0.02)}[kind]
    optimizer = rabit.DistributedOptimizer(
        make(model.parameters()), model.named_parameters(), backward_passes_per_step=passes,
        **arguments)
    for step in range(steps):
        for part in range(passes + unsynced):
            words, targets = words_of(step, part)
            quiet = optimizer.no_sync() if part < unsynced else contextlib.nullcontext()
            with quiet:
                if rank == skip and step >= 2:
                    loss = model.middle(torch.ones(2, 16)).square().mean()
                elif rank == no_head and step >= 2:
                    loss = model.middle(model.table(words)).square().mean()
                else:
                    loss = functional.cross_entropy(model(words), targets)
                loss.backward()
        if look is not None:
            look(model, optimizer, step)
        optimizer.step()
        optimizer.zero_grad(set_to_none=set_to_none)
    optimizer.flush()
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def gap(**arguments):
    plain = {key: value for key, value in arguments.items() if key != "row_sparse"}
    return (train(**plain) - train(**{"row_sparse": NAME, **arguments})).abs().max().item()


def operations():
    return rabit.statistics()["totals"]["operations"]
"""


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_result_is_that_of_the_dense_exchange(on_ranks, ranks):
    results = on_ranks(
        ranks,
        SETUP
        + """
found = {}
for overlap in ("none", "backward", "next-forward", "reduce-scatter"):
    found[overlap] = gap(overlap=overlap)
    found[overlap, "passes"] = gap(overlap=overlap, passes=3)
    found[overlap, "one rank skips"] = gap(overlap=overlap, skip=1)
    found[overlap, "one rank has no head"] = gap(overlap=overlap, no_head=0)
for overlap in ("backward", "next-forward"):
    for product in ("matmul", "twice", "unknown", "lookup"):
        found[overlap, product] = gap(overlap=overlap, product=product)
    found[overlap, "no_sync"] = gap(overlap=overlap, unsynced=2)
    found[overlap, "sum"] = gap(overlap=overlap, op=rabit.Sum)
    found[overlap, "unused"] = gap(overlap=overlap, skip=1, find_unused_parameters=True)
    found[overlap, "kept grads"] = gap(overlap=overlap, set_to_none=False)
    found[overlap, "adam"] = gap(overlap=overlap, kind="adam")
found["divided before"] = gap(gradient_predivide_factor=2.0)
found["all large ones"] = gap(row_sparse=True)
half = gap(compression=rabit.Compression.fp16)
few = rabit.add_process_set([0, 1])
if rank < 2:
    found["process set"] = gap(process_set=few)
report([{str(key): value for key, value in found.items()}, half])
""",
    )

    # float32 sums of a few ranks in another order; Adam divides such a gradient by its magnitude.
    for exact, half in results:
        adam = {key for key in exact if "adam" in key}
        assert max(value for key, value in exact.items() if key not in adam) < 1e-5, exact
        assert max(exact[key] for key in adam) < 1e-3, exact
        assert half < 1e-2


def test_all_ranks_have_the_same_bits(on_ranks):
    results = on_ranks(
        3,
        SETUP
        + """
report([train(row_sparse=NAME, overlap=each, no_head=2).tolist()
        for each in ("backward", "next-forward")])
""",
    )

    assert results[0] == results[1] == results[2]


@pytest.mark.parametrize("overlap", ["backward", "next-forward", "reduce-scatter"])
def test_the_dense_part_leaves_before_the_lookup_is_differentiated(on_ranks, overlap):
    """Before the backward pass has reached the middle, the head's part is on its way."""
    results = on_ranks(
        2,
        SETUP
        + f"OVERLAP = {overlap!r}"
        + """
torch.manual_seed(3)
model = Net()
optimizer = rabit.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.5), model.named_parameters(), row_sparse=NAME,
    overlap=OVERLAP)
seen = []
for step in range(3):
    words, targets = words_of(step, 0)
    hidden = model.table(words)
    hidden.register_hook(
        lambda grad: seen.append(optimizer._rabit_reducer.states[0].early._handle is not None))
    logits = functional.linear(torch.tanh(model.middle(hidden)), model.table.weight)
    functional.cross_entropy(logits, targets).backward()
    optimizer.step()
    optimizer.zero_grad()
report(seen)
""",
    )

    for seen in results:
        assert seen == [False, True, True]  # the first step shows how the table is used


def test_outside_of_the_exchange_the_parameter_is_a_plain_one(on_ranks):
    results = on_ranks(
        2,
        SETUP
        + """
kinds = []


class Observed(torch.optim.SGD):
    rabit_separable = True

    def step(self, closure=None):
        kinds.extend(type(p).__name__ for group in self.param_groups for p in group["params"])
        return super().step(closure)


torch.manual_seed(3)
found = []
for overlap in ("backward", "next-forward"):
    model = Net()
    optimizer = rabit.DistributedOptimizer(
        Observed(model.parameters(), lr=0.5), model.named_parameters(), row_sparse=NAME,
        overlap=overlap)
    for step in range(3):
        words, targets = words_of(step, 0)
        functional.cross_entropy(model(words), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
        twin, again = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
        buffer = io.BytesIO()
        torch.save(model.state_dict(), buffer)
        buffer.seek(0)
        loaded = torch.load(buffer)
        with torch.no_grad():
            expected = model(words)
            for other in (twin, again):
                assert type(other.table.weight) is torch.nn.Parameter
                assert torch.equal(other(words), expected)
        assert torch.equal(loaded["table.weight"], model.table.weight)
        (asked,) = torch.autograd.grad(
            functional.cross_entropy(model(words), targets), [model.table.weight])
        functional.cross_entropy(twin(words), targets).backward()
        found.append((asked - twin.table.weight.grad).abs().max().item())
    optimizer.flush()
report([sorted(set(kinds)), max(found)])
""",
    )

    for kinds, difference in results:
        assert kinds == ["Parameter"]
        assert difference < 1e-6


def test_the_table_may_be_written_to_between_two_forward_passes(on_ranks):
    results = on_ranks(
        2,
        SETUP
        + """
def run(**arguments):
    torch.manual_seed(3)
    model = Net()
    optimizer = rabit.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.5), model.named_parameters(), **arguments)
    for step in range(4):
        words, targets = words_of(step, 0)
        model(words)  # its graph is dropped
        with torch.no_grad():
            model.table.weight.clamp_(-1, 1)
        functional.cross_entropy(model(words), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
    optimizer.flush()
    return model.table.weight.detach()


report([(run() - run(row_sparse=NAME, overlap=each)).abs().max().item()
        for each in ("backward", "next-forward")])
""",
    )

    for differences in results:
        assert max(differences) < 1e-5


def test_compiled_code_makes_it_dense_and_says_so(on_ranks):
    results = on_ranks(
        2,
        SETUP
        + """
def run(**arguments):
    torch.manual_seed(3)
    model = Net()
    step_of = torch.compile(model, backend="eager")
    optimizer = rabit.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.5), model.named_parameters(), **arguments)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(6):
            words, targets = words_of(step, 0)
            net = step_of if step > 1 else model
            functional.cross_entropy(net(words), targets).backward()
            optimizer.step()
            optimizer.zero_grad()
    texts = [str(each.message) for each in caught if "row_sparse" in str(each.message)]
    return model.table.weight.detach().clone(), texts


dense, _ = run()
rows, texts = run(row_sparse=NAME)
report([(dense - rows).abs().max().item(), texts])
""",
    )

    for rank, (difference, texts) in enumerate(results):
        assert difference < 1e-5
        assert len(texts) == (1 if rank == 0 else 0)
        assert all("eager mode" in text for text in texts)
