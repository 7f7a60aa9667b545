"""What a program does inside of a step: hooks of its own, a step that GradScaler leaves out, closures."""

from __future__ import annotations

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
