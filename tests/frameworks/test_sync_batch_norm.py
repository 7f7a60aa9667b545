"""SyncBatchNorm on several ranks equals BatchNorm on the joint batch."""

from __future__ import annotations

import pytest

SCRIPT = """
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
    ours = rabit.SyncBatchNorm.convert(nn.Sequential(reference))[0]
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
