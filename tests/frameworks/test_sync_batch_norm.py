"""SyncBatchNorm on several ranks equals BatchNorm on the joint batch."""

from __future__ import annotations

import pytest

SCRIPT = """
import copy

from torch import nn

size, rank = rabit.size(), rabit.rank()
worst = {}
cuts = [0, 1, 4, 9, 12] if size == 4 else [0, 5, 12]  # uneven shares
mine = slice(cuts[rank], cuts[rank + 1])


def difference(a, b):
    return ((a - b).abs().max() / b.abs().max().clamp_min(1e-9)).item()


def compare(mean, exact, affine, momentum):
    # Beside BatchNorm of one process; `exact`: that one in double precision.
    torch.manual_seed(5)
    joint, target = torch.randn(12, 3, 4, 4) * 3 + mean, torch.randn(12, 3, 4, 4)
    reference = nn.BatchNorm2d(3, affine=affine, momentum=momentum)
    ours = rabit.SyncBatchNorm.convert(nn.Sequential(copy.deepcopy(reference)))[0]
    if exact:
        reference.double()
    whole = joint.clone().to(torch.float64 if exact else joint.dtype).requires_grad_()
    part = joint[mine].clone().requires_grad_()
    for _ in range(2):
        expected = reference(whole)
        have = ours(part)
    (expected * target).sum().backward()
    (have * target[mine]).sum().backward()
    values = {
        "output": difference(have, expected[mine]),
        "input gradient": difference(part.grad, whole.grad[mine]),
        "running mean": difference(ours.running_mean, reference.running_mean),
        "running var": difference(ours.running_var, reference.running_var),
    }
    if affine:
        for each in ("weight", "bias"):
            total = rabit.allreduce(getattr(ours, each).grad, op=rabit.Sum)
            values[each + " gradient"] = difference(total, getattr(reference, each).grad)
    reference.eval(), ours.eval()
    if not exact or mean < 10:  # evaluation is torch's own arithmetic
        values["evaluation"] = difference(ours(part), reference(part.to(whole.dtype)))
    for key, value in values.items():
        worst[f"{key}, mean {mean}, exact {exact}"] = value


for affine in (True, False):
    for momentum in (0.1, None):
        compare(1, False, affine, momentum)
        compare(1, True, affine, momentum)
        compare(1000, True, affine, momentum)  # far beyond the deviations
report(worst)
"""


@pytest.mark.parametrize("ranks", [2, 4])
def test_equals_batch_norm_on_the_joint_batch(on_ranks, ranks):
    for worst in on_ranks(ranks, SCRIPT):
        for what, value in worst.items():
            assert value <= 1e-6, (what, value)


def test_double_precision_agrees_to_rounding(on_ranks):
    script = "torch.set_default_dtype(torch.float64)\n" + SCRIPT

    for worst in on_ranks(4, script):
        assert max(worst.values()) < 1e-10


KEPT = """
import copy

from torch import nn

rank, kept = rabit.rank(), {}
convert = rabit.SyncBatchNorm.convert
for dtype in (torch.float64, torch.bfloat16):
    kept[str(dtype)] = convert(nn.BatchNorm1d(2).to(dtype)).weight.dtype == dtype
kept["device"] = convert(nn.BatchNorm1d(2, device="meta")).weight.is_meta

layer = nn.BatchNorm1d(2).eval()
layer.weight.requires_grad_(False)
weight, mean = layer.weight, layer.running_mean
layer.note, calls = "mine", []
layer.register_forward_hook(lambda *_: calls.append("after"))
layer.register_forward_pre_hook(lambda *_: calls.append("before"))
layer.register_buffer("extra", torch.ones(1), persistent=False)
found = convert(layer)
found(torch.randn(4, 2))
kept["hooks"] = calls == ["before", "after"]
kept["frozen"] = found.weight is weight and not weight.requires_grad and found.bias.requires_grad
kept["buffers"] = found.running_mean is mean and found.extra is layer.extra
kept["mode"] = not found.training
kept["attribute"] = found.note == "mine"

torch.manual_seed(1)
model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
model.norms = [model[1]]
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
optimizer = rabit.DistributedOptimizer(optimizer, model.named_parameters())
model = convert(model)
before = model[1].weight.detach().clone()
model(torch.randn(8, 2) + rank).pow(3).sum().backward()
optimizer.step()
kept["an optimizer of before trains it"] = not torch.equal(before, model[1].weight)
kept["a plain list of layers"] = model.norms[0] is model[1]

shared = nn.BatchNorm1d(2)
both = convert(nn.ModuleDict({"a": nn.Sequential(shared), "b": nn.Sequential(shared)}))
kept["one layer in two places"] = both["a"][0] is both["b"][0]
kept["parametrization"] = "parametrizations" in dict(
    convert(nn.utils.parametrize.register_parametrization(nn.BatchNorm1d(2), "weight", nn.Softplus())).named_children()
)
kept["twice"] = convert(both)["a"][0] is both["a"][0]
kept["torch's own"] = isinstance(convert(nn.SyncBatchNorm(2)), rabit.SyncBatchNorm)
kept["deepcopy"] = type(copy.deepcopy(found)) is rabit.SyncBatchNorm


class WithRelu(nn.BatchNorm1d):
    def forward(self, x):
        return torch.relu(super().forward(x))


joint = torch.randn(4 * rabit.size(), 2, generator=torch.Generator().manual_seed(3))
layer = WithRelu(2)
want = copy.deepcopy(layer)(joint)[4 * rank : 4 * rank + 4]
have = convert(layer)(joint[4 * rank : 4 * rank + 4])
kept["activation of a subclass"] = isinstance(layer, WithRelu) and torch.allclose(have, want, atol=1e-6)
report(kept)
"""


@pytest.mark.parametrize("ranks", [1, 2])
def test_conversion_keeps_all_of_a_layer_but_its_statistics(on_ranks, ranks):
    for kept in on_ranks(ranks, KEPT):
        assert [name for name, is_kept in kept.items() if not is_kept] == []


def test_an_epoch_follows_a_join_after_uneven_data(on_ranks):
    script = """
    from torch import nn

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), rabit.SyncBatchNorm(4), nn.Linear(4, 1))
    optimizer = rabit.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    last = []
    for epoch in range(2):
        for _ in range(2 + rabit.rank()):
            optimizer.zero_grad()
            model(torch.randn(4, 3)).mean().backward()
            optimizer.step()
        last.append(rabit.join())
    report([last, rabit.allreduce(torch.ones(1), op=rabit.Sum).item()])
    """

    assert on_ranks(2, script) == [[[1, 1], 2.0]] * 2


def test_conversion_refuses_what_it_cannot_make_joint(on_ranks):
    script = """
    from torch import nn

    class WithOwnArithmetic(nn.BatchNorm1d):
        def forward(self, x):
            return torch.relu(nn.functional.batch_norm(x, self.running_mean, self.running_var, training=True))

    errors = []
    for layer in (WithOwnArithmetic(2), nn.LazyBatchNorm1d()):
        try:
            rabit.SyncBatchNorm.convert(nn.Sequential(layer))(torch.randn(4, 2))
        except rabit.Unsupported as error:
            errors.append(str(error))
    report(errors)
    """

    for own, lazy in on_ranks(2, script):
        assert "WithOwnArithmetic" in own and "super().forward" in own
        assert "LazyBatchNorm1d" in lazy and "batch through the model first" in lazy


def test_evaluation_without_running_statistics_communicates_nothing(on_ranks):
    script = """
    layer = rabit.SyncBatchNorm(2, track_running_stats=False).eval()
    values = torch.randn(4, 2, generator=torch.Generator().manual_seed(rabit.rank()))
    if rabit.rank() == 0:
        want = torch.nn.functional.batch_norm(values, None, None, layer.weight, layer.bias, True)
        assert torch.equal(layer(values), want)
    report(True)
    """

    assert on_ranks(2, script) == [True, True]
