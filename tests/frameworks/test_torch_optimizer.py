"""What training scripts do with a DistributedOptimizer beyond the plain loop."""

from __future__ import annotations

from typing import NamedTuple

import pytest

SETUP = """
import warnings
from torch import nn

torch.manual_seed(3)
rank, size = rabit.rank(), rabit.size()
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
rabit.broadcast_parameters(model.state_dict(), root_rank=0)
named = list(model.named_parameters())


def data(seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(4 * size, 6, generator=generator), torch.randn(4 * size, 4, generator=generator)


def share(joint):
    return joint[rank * 4:(rank + 1) * 4]


def loss_of(seed, whole=False):
    x, y = data(seed)
    return (model(x if whole else share(x)) - (y if whole else share(y))).square().mean()


def flat():
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()]).tolist()


def wrap(**arguments):
    return rabit.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), named, **arguments)
"""


def close(a, b, tolerance=1e-6):
    return max(abs(x - y) for x, y in zip(a, b, strict=True)) < tolerance


def test_gradients_are_reduced_when_backward_returns(on_ranks):
    results = on_ranks(
        2,
        SETUP
        + """
optimizer = wrap()
loss_of(0).backward()
reduced = [p.grad.clone() for p in model.parameters()]
optimizer.zero_grad()
with optimizer.no_sync():
    loss_of(0, whole=True).backward()
report(max((r - p.grad).abs().max().item() for r, p in zip(reduced, model.parameters())))
""",
    )

    assert max(results) < 1e-6


def test_clipping_works_without_ceremony_and_with_it(on_ranks):
    results = on_ranks(
        2,
        SETUP
        + """
before = {name: p.detach().clone() for name, p in named}
optimizer = wrap()
loss_of(1).backward()
torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
optimizer.step()
plain = flat()
for name, p in named:
    p.data.copy_(before[name])
optimizer.zero_grad()
loss_of(1).backward()
optimizer.synchronize()
torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
with warnings.catch_warnings():
    warnings.simplefilter("error")
    with optimizer.skip_synchronize():
        optimizer.step()
report([plain, flat()])
""",
    )

    assert all(close(*result, 1e-9) for result in results)
    assert results[0] == results[1]


def test_step_after_synchronize_warns_once(on_ranks):
    results = on_ranks(
        2,
        SETUP
        + """
optimizer = wrap()
loss_of(1).backward()
optimizer.synchronize()
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    optimizer.step()
report([str(w.message) for w in caught])
""",
    )

    for messages in results:
        assert len(messages) == 1
        assert "optimizer.step() called without optimizer.skip_synchronize()" in messages[0]


def test_accumulation_with_a_partial_last_window(on_ranks):
    results = on_ranks(
        2,
        SETUP
        + """
optimizer = wrap(backward_passes_per_step=3)
for seed in range(3):
    loss_of(seed).backward()
optimizer.step()
optimizer.zero_grad()
loss_of(9).backward()
optimizer.step()
mine = flat()
report(mine)
""",
    )

    assert results[0] == results[1]


def test_no_sync_adds_up_locally(on_ranks):
    results = on_ranks(
        2,
        SETUP
        + """
optimizer = wrap()
with optimizer.no_sync():
    loss_of(0).backward()
loss_of(1).backward()
reduced = torch.cat([p.grad.reshape(-1) for p in model.parameters()])
optimizer.zero_grad()
with optimizer.no_sync():
    (loss_of(0, whole=True) + loss_of(1, whole=True)).backward()
joint = torch.cat([p.grad.reshape(-1) for p in model.parameters()])
report((reduced - joint).abs().max().item())
""",
    )

    assert max(results) < 1e-6


def test_parameters_unused_on_one_rank_get_the_others_gradient(on_ranks):
    results = on_ranks(
        2,
        SETUP
        + """
extra = nn.Linear(6, 4)
rabit.broadcast_parameters(extra.state_dict(), root_rank=0)
optimizer = rabit.DistributedOptimizer(
    torch.optim.SGD([*model.parameters(), *extra.parameters()], lr=0.1),
    [*named, *[("extra." + n, p) for n, p in extra.named_parameters()]],
)
x, y = data(0)
out = model(share(x))
if rank == 0:
    out = out + extra(share(x))
out.square().mean().backward()
optimizer.step()
report([flat(), extra.weight.detach().reshape(-1).tolist()])
""",
    )

    assert results[0] == results[1]


def test_two_optimizers_on_one_model_do_not_clash(on_ranks):
    results = on_ranks(
        2,
        SETUP
        + """
first = rabit.DistributedOptimizer(torch.optim.SGD(model[0].parameters(), lr=0.1), model[0].named_parameters())
second = rabit.DistributedOptimizer(torch.optim.Adam(model[2].parameters(), lr=0.1), model[2].named_parameters())
for seed in range(3):
    for optimizer in (first, second):
        optimizer.zero_grad()
        loss_of(seed).backward()
        optimizer.step()
report(flat())
""",
    )

    assert results[0] == results[1]


def test_a_second_backward_before_step_is_refused_with_a_remedy(on_ranks):
    results = on_ranks(
        2,
        SETUP
        + """
optimizer = wrap()
loss_of(0).backward()
try:
    loss_of(1).backward()
    report("no error")
except rabit.InvalidArgument as error:
    report(str(error))
optimizer.zero_grad()
""",
    )

    assert all("zero_grad()" in text and "a second time" in text for text in results)


def test_zero_grad_takes_the_arguments_of_torch(on_ranks):
    results = on_ranks(
        2,
        SETUP
        + """
optimizer = wrap()
loss_of(0).backward()
optimizer.zero_grad(set_to_none=False)
zeros = all(p.grad.abs().sum().item() == 0 for p in model.parameters())
optimizer.zero_grad(set_to_none=True)
report([zeros, all(p.grad is None for p in model.parameters())])
""",
    )

    assert results == [[True, True]] * 2


def test_add_param_group_reduces_the_new_parameters_too(on_ranks):
    results = on_ranks(
        2,
        SETUP
        + """
optimizer = rabit.DistributedOptimizer(torch.optim.SGD(model[0].parameters(), lr=0.1), model[0].named_parameters())
optimizer.add_param_group({"params": list(model[2].parameters())})
loss_of(rank).backward()
optimizer.step()
report(flat())
""",
    )

    assert results[0] == results[1]


def test_lr_schedulers_grad_scaler_and_isinstance_work(on_ranks):
    results = on_ranks(
        2,
        SETUP
        + """
optimizer = wrap()
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
for seed in range(2):
    optimizer.zero_grad()
    scaler.scale(loss_of(seed)).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    scheduler.step()
report([flat(), optimizer.param_groups[0]["lr"], isinstance(optimizer, torch.optim.SGD)])
""",
    )

    assert results[0] == results[1]
    assert results[0][1:] == [0.025, True]


def test_closures_are_reduced(on_ranks):
    results = on_ranks(
        2,
        SETUP
        + """
optimizer = rabit.DistributedOptimizer(torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4), named)


def closure():
    optimizer.zero_grad()
    loss = loss_of(5)
    loss.backward()
    return rabit.allreduce(loss.detach(), name="loss").requires_grad_()


optimizer.step(closure)
report(flat())
""",
    )

    assert results[0] == results[1]


def test_sparse_gradients(on_ranks):
    results = on_ranks(
        2,
        """
from torch import nn

torch.manual_seed(0)
answers = []
for as_dense in (False, True):
    table = nn.Embedding(10, 3, sparse=True)
    rabit.broadcast_parameters(table.state_dict(), root_rank=0)
    optimizer = rabit.DistributedOptimizer(
        torch.optim.SGD(table.parameters(), lr=1.0), table.named_parameters(), sparse_as_dense=as_dense
    )
    before = table.weight.detach().clone()
    table(torch.tensor([rabit.rank(), 5])).sum().backward()
    optimizer.step()
    answers.append((before - table.weight.detach()).sum(dim=1).tolist())
report(answers)
""",
    )

    expected = [1.5, 1.5, 0, 0, 0, 3.0, 0, 0, 0, 0]
    for answers in results:
        assert all(close(answer, expected) for answer in answers)


DIFFERENT = {
    "another optimizer": (
        "torch.optim.Adam(model.parameters()) if rank == 1 else torch.optim.SGD(model.parameters(), 0.1)",
        ["the set of hyper-parameters is ['amsgrad', 'betas',", "on rank 1 (Adam) and ['dampening',",
         "on rank 0 (SGD)"],
    ),
    "fewer parameters": (
        "torch.optim.SGD(model[2].parameters() if rank == 1 else model.parameters(), 0.1)",
        ["the number of parameters of the groups is [2] on rank 1 (SGD) and [4] on rank 0 (SGD)"],
    ),
    "other names": (
        "rabit.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1),"
        " [('x.' + n if rank == 1 and '2' in n else n, p) for n, p in named])",
        ["named_parameters is ['x.2.bias', 'x.2.weight'] beyond what both have on rank 1",
         "and ['2.bias', '2.weight'] beyond what both have on rank 0"],
    ),
    "other passes": (
        "wrap(backward_passes_per_step=1 + rank)",
        ["backward_passes_per_step is 2 on rank 1 (SGD) and 1 on rank 0 (SGD)"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", DIFFERENT)
def test_optimizers_that_differ_are_told_on_every_rank(on_ranks, what):
    made, texts = DIFFERENT[what]
    results = on_ranks(
        2,
        SETUP
        + f"""
try:
    rabit.broadcast_optimizer_state({made}, root_rank=0)
    report("nothing")
except rabit.Mismatch as error:
    report(f"{{error.rank}} {{error}}")
""",
    )

    assert results[0] == results[1] and results[0].startswith("1 "), results
    assert all(text in results[0] for text in texts), results


def test_the_root_alone_may_have_loaded_a_state(on_ranks):
    """One with keys that a learning-rate schedule has added, or another version of torch."""
    results = on_ranks(
        2,
        SETUP
        + """
optimizer = wrap()
if rank == 0:
    saved = optimizer.state_dict()
    saved["param_groups"][0].update(initial_lr=0.5, lr=0.25)
    optimizer.load_state_dict(saved)
rabit.broadcast_optimizer_state(optimizer, root_rank=0)
report([optimizer.param_groups[0][key] for key in ("initial_lr", "lr")])
""",
    )

    assert results == [[0.5, 0.25]] * 2


def test_bad_arguments_are_refused(on_ranks):
    results = on_ranks(
        1,
        SETUP
        + """
texts = []
for arguments in (
    {"gradient_predivide_factor": 2.0, "op": rabit.Sum}, {"backward_passes_per_step": 0},
    {"compression": "fp16"}, {"num_groups": -1}, {"process_set": 1},
):
    try:
        wrap(**arguments)
        texts.append("no error")
    except ValueError as error:
        texts.append(str(error))
for bad in (named[:2], named + named[:1]):
    try:
        rabit.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), bad)
        texts.append("no error")
    except ValueError as error:
        texts.append(str(error))
report(texts)
""",
    )

    (texts,) = results
    for text, word in zip(
        texts,
        [
            "op=Average",
            "at least 1",
            "Compression.fp16",
            "num_groups",
            "not a ProcessSet",
            "without a name",
            "more than once",
        ],
        strict=True,
    ):
        assert word in text


def test_a_rank_outside_of_the_process_set_trains_by_itself(on_ranks):
    results = on_ranks(
        3,
        SETUP
        + """
pair = rabit.add_process_set([0, 1])
answers = []
for arguments in ({}, {"op": rabit.Adasum}, {"overlap": "auto"}, {"overlap": "next-forward"},
                  {"find_unused_parameters": True}, {"row_sparse": True}, {"strategy": "topk:ratio=0.5,small=0"}):
    torch.manual_seed(3)
    for p in model.parameters():
        nn.init.constant_(p, 0.1)
        p.grad = None
    optimizer = wrap(process_set=pair, **arguments)
    for step in range(3):
        optimizer.zero_grad()
        (model(torch.full((1, 6), rank + 1.0)).sum()).backward()
        optimizer.step()
    optimizer.synchronize()
    answers.append(flat())
alone = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
for p in alone.parameters():
    nn.init.constant_(p, 0.1)
plain = torch.optim.SGD(alone.parameters(), lr=0.1)
for step in range(3):
    plain.zero_grad()
    alone(torch.full((1, 6), 3.0)).sum().backward()
    plain.step()
report([answers, torch.cat([p.detach().reshape(-1) for p in alone.parameters()]).tolist()])
""",
    )

    for answers in zip(*[each[0] for each in results], strict=True):
        assert close(answers[0], answers[1])
        assert close(answers[2], results[2][1])
        assert not close(answers[0], answers[2])


def test_a_frozen_parameter_may_be_there_when_the_overlap_is_chosen_by_measuring(on_ranks):
    results = on_ranks(
        2,
        SETUP
        + """
model[0].weight.requires_grad_(False)
optimizer = wrap(overlap="auto")
loss_of(0).backward()
optimizer.step()
report(optimizer.overlap)
""",
    )

    assert results == ["backward"] * 2


def test_an_adasum_optimizer_takes_the_overlap_it_has(on_ranks):
    results = on_ranks(
        2,
        SETUP
        + """
import rabit as core
optimizer = wrap(op=rabit.Adasum)
optimizer.set_overlap("none")
try:
    wrap(op=rabit.Adasum, compression=core.CompressionCodec("fp16"))
    report("accepted")
except rabit.Unsupported as error:
    report([optimizer.overlap, str(error)])
""",
    )

    for overlap, text in results:
        assert overlap == "none"
        assert "DistributedOptimizer(op=Adasum): compression" in text and "is for allreduce" in text


def test_sparse_gradients_sent_dense_are_sparse_again_for_the_optimizer(on_ranks):
    results = on_ranks(
        2,
        """
torch.manual_seed(0)
tables = torch.nn.ModuleList(torch.nn.Embedding(6, 2, sparse=True) for _ in range(2))
torch.nn.init.ones_(tables[0].weight), torch.nn.init.ones_(tables[1].weight)
optimizer = rabit.DistributedOptimizer(
    torch.optim.SparseAdam(tables.parameters(), lr=0.1), sparse_as_dense=True
)
answers = []
for step in range(3):
    optimizer.zero_grad()
    rows = torch.tensor([rabit.rank(), 4])
    sum(table(rows).sum() for table in tables).backward()
    gradient = tables[0].weight.grad
    answers.append([gradient.is_sparse, gradient.to_dense()[:, 0].tolist()])
    optimizer.step()
report([answers, tables[1].weight[:, 0].tolist()])
""",
    )

    for answers, weight in results:
        assert answers == [[True, [0.5, 0.5, 0.0, 0.0, 1.0, 0.0]]] * 3
        assert [value < 1 for value in weight] == [True, True, False, False, True, False]


BRANCHES = """
class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.even, self.odd, self.head = nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(8, 4)

    def forward(self, x, is_even):
        return self.head(self.even(x) if is_even else self.odd(x))


model = Branches()
named = list(model.named_parameters())
rabit.broadcast_parameters(model.state_dict(), root_rank=0)
"""


def test_ranks_that_use_different_parameters_go_on_after_one_stall(on_ranks):
    results = on_ranks(
        2,
        SETUP
        + BRANCHES
        + """
start = {name: value.clone() for name, value in model.state_dict().items()}
answers = []
for arguments in ({}, {"overlap": "reduce-scatter"}, {"strategy": "topk:ratio=1,small=0"},
                  {"find_unused_parameters": True}):
    model.load_state_dict(start)
    model.zero_grad()
    optimizer = wrap(**arguments)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(4):
            optimizer.zero_grad()
            (model(share(data(step)[0]), (rank + step) % 2 == 0)).square().mean().backward()
            optimizer.step()
        optimizer.synchronize()
    told = [str(w.message) for w in caught if "find_unused_parameters" in str(w.message)]
    answers.append([flat(), told])
report(answers)
""",
        RABIT_STALL_WARNING="0.3",
    )

    for case, ((flat, first), (same, second)) in enumerate(zip(*results, strict=True)):
        assert flat == same
        assert close(flat, results[0][3][0])
        # The first rank that sends zeros may spare the other one the wait, which sends its own at step().
        assert len(first) <= 1 and len(second) <= 1
        assert bool(first or second) == (case < 3)
        for rank, told in ((0, first), (1, second)):
            assert all(f"rank {rank} has waited 0.3 s" in text for text in told)
            assert all(".odd.weight'" in text or ".even.weight'" in text for text in told)


@pytest.mark.parametrize("overlap", ["next-forward", "reduce-scatter"])
def test_an_update_that_nothing_has_read_is_done_before_the_next_gradients_are_missed(on_ranks, overlap):
    """What a rank does not use keeps the last update waiting: its zeros must leave all the same."""
    results = on_ranks(
        2,
        SETUP
        + BRANCHES
        + """
import os

import rabit_torch.overlap.deferred as deferred

deferred._TAKE_ALONG = 1  # as where the other gradients are late
start = {name: value.clone() for name, value in model.state_dict().items()}
answers = []
for overlap in ("backward", os.environ["OVERLAP"]):
    model.load_state_dict(start)
    model.zero_grad()
    optimizer = wrap(overlap=overlap)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for step in range(5):
            optimizer.zero_grad()
            (model(share(data(step)[0]), (rank + step) % 2 == 0)).square().mean().backward()
            optimizer.step()
        optimizer.synchronize()
    answers.append(flat())
report(answers)
""",
        RABIT_STALL_WARNING="0.3",
        OVERLAP=overlap,
    )

    assert results[0] == results[1]
    assert close(results[0][1], results[0][0])


def test_a_second_pass_that_computes_what_was_sent_as_zeros_is_refused(on_ranks):
    results = on_ranks(
        2,
        SETUP
        + BRANCHES
        + """
optimizer = wrap()
warnings.simplefilter("ignore")
x, _ = data(0)
model(share(x), rank == 0).sum().backward()
told = ""
try:
    (model.even if rank else model.odd)(share(x)).sum().backward()
except rabit.RabitError as error:
    told = str(error)
optimizer.synchronize()
report(told)
""",
        RABIT_STALL_WARNING="0.3",
    )

    assert any(results)
    for rank, text in enumerate(results):
        if text:
            assert f"on rank {rank} arrived in a second backward pass" in text
            assert "find_unused_parameters=True" in text


def test_clipping_by_the_optimizer_returns_the_norm_in_every_mode(on_ranks):
    """As torch does, of the gradients before they are clipped; read before the step, after it, or not at all."""
    results = on_ranks(
        2,
        SETUP
        + """
start = {name: p.detach().clone() for name, p in named}
answers = {}
for overlap in ("backward", "next-forward", "reduce-scatter"):
    for when in ("before", "after", "last"):
        for name, p in named:
            p.data.copy_(start[name])
        optimizer = wrap(overlap=overlap)
        norms = []
        for seed in range(4):
            optimizer.zero_grad()
            loss_of(seed).backward()
            norms.append(optimizer.clip_grad_norm_(0.1))
            if when == "before":
                norms[-1] = float(norms[-1])
            optimizer.step()
            if when == "after":
                norms[-1] = float(norms[-1])
        if when == "last":
            norms = [0.0, 0.0, 0.0, norms[-1].item()]
        answers[f"{overlap} {when}"] = [norms, flat()]
        optimizer.zero_grad()
        loss_of(5).backward()
        late = optimizer.clip_grad_norm_(0.1)
        optimizer.zero_grad()
        try:
            answers.setdefault("late", []).append(float(late))
        except rabit.InvalidArgument as error:
            answers["late"].append(str(error))
        del optimizer, late
report(answers)
""",
    )

    for found in results:
        late = found.pop("late")
        assert all("no step() has used them" in text for text in late[3:]) and late[0] > 0
        norms, values = found["backward before"]
        assert norms == found["backward after"][0] and min(norms) > 0.1
        for case, (others, flat) in found.items():
            assert close(flat, values), case
            assert close(others[-1:], norms[-1:], 1e-5), case
            assert case.endswith("last") or close(others, norms, 1e-5), case
    assert results[0] == results[1]


WRAPPERS = """
class Accelerated(torch.optim.Optimizer):
    def __init__(self, optimizer):
        self.optimizer = optimizer
        self.param_groups = optimizer.param_groups


class Other:
    variables = ()


def refusal(optimizer):
    try:
        rabit.DistributedOptimizer(optimizer, named)
        return "nothing was said"
    except rabit.InvalidArgument as error:
        return str(error)


optimizer = wrap()
report([refusal(each) for each in (optimizer, Accelerated(optimizer), Other())]
       + [refusal(Accelerated(torch.optim.SGD(model.parameters(), lr=0.1)))])
"""


def test_an_optimizer_that_is_wrapped_or_is_none_is_refused(on_ranks):
    ((twice, inside, other, once),) = on_ranks(1, SETUP + WRAPPERS)

    assert twice.startswith("SGD on rank 0 is wrapped by DistributedOptimizer already")
    assert inside.startswith("SGD, inside of Accelerated, on rank 0 is wrapped")
    assert ".Other, which has no param_groups" in other
    assert once == "nothing was said"


DROPPED = """
import gc
from rabit.engine import current

KINDS = {torch.nn.Parameter}


def left_by(make):
    for _ in range(3):
        made = make()
        del made
    gc.collect()
    hooks = [len(p._post_accumulate_grad_hooks or ()) for p in model.parameters()]
    hooks.append(sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()))
    return sum(hooks), {type(p) for p in model.parameters()} == KINDS


def begun(**arguments):
    optimizer = wrap(**arguments)
    loss_of(0).backward()
    return optimizer


model[0].bias.requires_grad_(False)
report({
    "plain": left_by(wrap),
    "begun": left_by(begun),
    "auto": left_by(lambda: wrap(overlap="auto")),
    "guards": left_by(lambda: wrap(check_finite=True)),
    "crossing": left_by(lambda: wrap(overlap="next-forward")),
    "halves": left_by(lambda: wrap(overlap="reduce-scatter")),
    "rows": left_by(lambda: wrap(row_sparse=["0.weight"])),
    "method": left_by(lambda: wrap(strategy="topk")),
    "adasum": left_by(lambda: wrap(op=rabit.Adasum)),
    "ddp": left_by(lambda: rabit.DistributedDataParallel(model)),
    "engine": (max(0, len(current._followers) + len(current.default_engine()._before_close) - 6), True),
})
"""


def test_nothing_of_a_wrapper_stays_on_the_model_when_it_goes(on_ranks):
    for found in on_ranks(2, SETUP + DROPPED):
        assert set(map(tuple, found.values())) == {(0, True)}, found


def test_named_tuples_in_the_state_of_an_optimizer_travel_as_such():
    torch = pytest.importorskip("torch")
    from rabit_torch.state import _put_tensors, _take_tensors

    class Moments(NamedTuple):
        first: object
        count: int

    tensors = []
    taken = _take_tensors({"state": {0: Moments(torch.ones(2), 3)}}, tensors)
    found = _put_tensors(taken, [tensor + 1 for tensor in tensors])["state"][0]

    assert type(found) is Moments and found.count == 3 and found.first.tolist() == [2, 2]
