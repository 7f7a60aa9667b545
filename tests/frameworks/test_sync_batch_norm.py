"""SyncBatchNorm on several ranks equals BatchNorm on the joint batch."""

from __future__ import annotations

import pytest

SCRIPT = """
from torch import nn

size, rank = rabit.size(), rabit.rank()
torch.manual_seed(5)
joint = torch.randn(12, 3, 4, 4) * 3 + 50
target = torch.randn(12, 3, 4, 4)
worst = {}
cuts = [0, 1, 4, 9, 12] if size == 4 else [0, 5, 12]  # uneven shares
mine = slice(cuts[rank], cuts[rank + 1])


def difference(a, b):
    return ((a - b).abs().max() / b.abs().max().clamp_min(1e-9)).item()


for affine in (True, False):
    for momentum in (0.1, None):
        reference = nn.BatchNorm2d(3, affine=affine, momentum=momentum)
        ours = rabit.SyncBatchNorm.convert(nn.Sequential(nn.BatchNorm2d(3, affine=affine, momentum=momentum)))[0]
        whole = joint.clone().requires_grad_()
        part = joint[mine].clone().requires_grad_()
        for _ in range(2):
            expected = reference(whole)
            have = ours(part)
        (expected * target).sum().backward()
        (have * target[mine]).sum().backward()
        values = {
            "output": difference(have, expected[mine]), "input gradient": difference(part.grad, whole.grad[mine]),
            "running mean": difference(ours.running_mean, reference.running_mean),
            "running var": difference(ours.running_var, reference.running_var),
        }
        if affine:
            total = rabit.allreduce(ours.weight.grad, op=rabit.Sum)
            values["weight gradient"] = difference(total, reference.weight.grad)
        reference.eval(), ours.eval()
        values["evaluation"] = difference(ours(part), reference(part))
        for key, value in values.items():
            worst[key] = max(worst.get(key, 0), value)
report(worst)
"""


@pytest.mark.parametrize("ranks", [2, 4])
def test_equals_batch_norm_on_the_joint_batch(on_ranks, ranks):
    for worst in on_ranks(ranks, SCRIPT):
        for what, value in worst.items():
            assert value < (2e-5 if "gradient" in what else 1e-5), (what, value)


def test_double_precision_agrees_to_rounding(on_ranks):
    script = "torch.set_default_dtype(torch.float64)\n" + SCRIPT

    for worst in on_ranks(4, script):
        assert max(worst.values()) < 1e-10
