"""What a program does inside of a step: hooks of its own, a step that GradScaler leaves out, closures."""

from __future__ import annotations

import pytest

SETUP = """
def model_of(seed=0):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))


model = model_of()
rank = rabit.rank()
"""


def test_a_gradient_that_a_hook_has_taken_away_is_named(on_ranks):
    text, _ = on_ranks(
        2,
        SETUP
        + """
def consume(parameter):
    parameter.grad = None


model[2].weight.register_post_accumulate_grad_hook(consume)
optimizer = rabit.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
try:
    model(torch.ones(2, 4)).sum().backward()
    report("no error")
except rabit.InvalidArgument as error:
    report(str(error))
""",
    )

    assert "gradient 'gradient.2.weight' on rank 0 is gone" in text
    assert "leave the parameter out" in text


def test_a_step_that_a_scaler_leaves_out_is_among_the_causes(on_ranks):
    text, _ = on_ranks(
        2,
        SETUP
        + """
optimizer = rabit.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
try:
    for _ in range(2):
        model.zero_grad(set_to_none=False)
        scaler.scale(model(torch.ones(2, 4) * 1e3).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    report("no error")
except rabit.InvalidArgument as error:
    report(str(error))
optimizer.zero_grad()
""",
    )

    assert "GradScaler leaves step() out after an overflow" in text
    assert "zero_grad() of the DistributedOptimizer" in text


def test_ranks_of_a_line_search_evaluate_equally_often(on_ranks):
    """And step as one process does with the data of all."""
    results = on_ranks(
        2,
        SETUP
        + """
def data(seed):
    inputs = torch.randn(8, 4, generator=torch.Generator().manual_seed(seed))
    return inputs, inputs.sum(1, keepdim=True)


def train(model, optimizer, loss_of):
    counts, losses = 0, []

    def closure():
        nonlocal counts
        counts += 1
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        return loss

    for _ in range(3):
        losses.append(float(optimizer.step(closure)))
    return [counts, losses, torch.cat([p.detach().reshape(-1) for p in model.parameters()]).tolist()]


def loss_on(model, seed):
    inputs, targets = data(seed)
    return (model(inputs) - targets).square().mean()


def lbfgs(model):
    return torch.optim.LBFGS(model.parameters(), lr=1, max_iter=5, line_search_fn="strong_wolfe")


answers = []
for op, factor in ((rabit.Average, 0.5), (rabit.Sum, 1.0)):
    model, alone = model_of(), model_of()
    optimizer = rabit.DistributedOptimizer(lbfgs(model), model.named_parameters(), op=op)
    mine = train(model, optimizer, lambda model: loss_on(model, rank))
    expected = train(alone, lbfgs(alone), lambda model: factor * (loss_on(model, 0) + loss_on(model, 1)))
    answers.append([mine, expected])
report(answers)
""",
        RABIT_STALL_ABORT="5",
    )

    for of_first, of_second in zip(*results, strict=True):
        assert of_first[0] == of_second[0]
        counts, losses, values = of_first[0]
        assert counts == of_first[1][0] > 10
        assert losses == pytest.approx(of_first[1][1], rel=1e-3)
        assert values == pytest.approx(of_first[1][2], abs=1e-3)


def test_a_closure_of_other_optimizers_returns_the_loss_of_the_rank(on_ranks):
    results = on_ranks(
        2,
        SETUP
        + """
optimizer = rabit.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())


def closure():
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    return float(rank)


report(optimizer.step(closure))
""",
    )

    assert results == [0.0, 1.0]


def test_a_step_with_a_closure_ends_like_any_other(on_ranks):
    """It is counted, small gradients travel in packs from the second step on, and replicas are compared."""
    results = on_ranks(
        2,
        SETUP
        + """
def closure():
    optimizer.zero_grad()
    loss = model(torch.ones(2, 4)).sum()
    loss.backward()
    return loss


answers = {}
for overlap in (None, "auto"):
    made = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = rabit.DistributedOptimizer(made, model.named_parameters(), check_replicas=1, overlap=overlap)
    before = rabit.statistics()["steps"]
    operations = []
    for _ in range(14):
        started = rabit.statistics()["submitted"]
        optimizer.step(closure)
        operations.append(rabit.statistics()["submitted"] - started)
    answers[str(overlap)] = [rabit.statistics()["steps"] - before, operations[-1] < 4]
with torch.no_grad():
    model[0].bias[1] += rank
try:
    optimizer.step(closure)
    answers["text"] = "nothing was said"
except rabit.IntegrityError as error:
    answers["text"] = str(error)
report(answers)
""",
    )

    for found in results:
        assert found["None"] == found["auto"] == [14, True]
        assert "0.bias" in found["text"]
