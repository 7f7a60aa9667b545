"""check_finite and check_replicas of DistributedOptimizer."""

from __future__ import annotations

import pytest
import torch

import rabit_torch
from rabit.testing import run_ranks

SCRIPT = """
def optimizer_of(model, **options):
    made = torch.optim.SGD(model.parameters(), lr=0.1)
    return rabit.DistributedOptimizer(made, model.named_parameters(), **options)

def bad_gradient(overlap, check_finite, backward_passes_per_step=1):
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Linear(5, 2))
    optimizer = optimizer_of(model, overlap=overlap, check_finite=check_finite,
                             backward_passes_per_step=backward_passes_per_step)
    for step in range(1, 40):
        for turn in range(backward_passes_per_step):
            loss = model(torch.ones(1, 4)).sum()
            if step >= 3 and rabit.rank() == 1 and turn == 0:
                loss = loss + model[1].bias[1] * float("inf")
            loss.backward()
        before = [each.detach().clone() for each in model.parameters()]
        try:
            optimizer.step()
        except rabit.IntegrityError as error:
            same = all(map(torch.equal, before, model.parameters()))
            return [step, error.rank, str(error), same]
        optimizer.zero_grad()
    return None

def flipped_bit(overlap):
    torch.manual_seed(3)
    model = torch.nn.Linear(4, 5)
    optimizer = optimizer_of(model, overlap=overlap, check_replicas=2)
    for step in range(1, 9):
        optimizer.zero_grad()
        model(torch.ones(1, 4)).sum().backward()
        if step == 4 and rabit.rank() == 2:
            model.weight.data.view(torch.int32)[3, 1] ^= 1
        try:
            optimizer.step()
        except rabit.IntegrityError as error:
            return [step, error.rank, str(error)]
    return None

found = {
    "plain": bad_gradient("backward", True),
    "next-forward": bad_gradient("next-forward", True),
    "two passes": bad_gradient("backward", True, 2),
    "sample": bad_gradient("backward", "sample"),
    "flip": flipped_bit("backward"),
    "flip, next-forward": flipped_bit("next-forward"),
}
try:
    optimizer_of(torch.nn.Linear(1, 1), strategy="diloco:every=2", check_replicas=5)
except rabit.InvalidArgument as error:
    found["refused"] = str(error)
report(found)
"""


def test_wrong_numbers_are_named_on_all_ranks(on_ranks):
    ranks = on_ranks(3, SCRIPT)

    assert ranks[0] == ranks[1] == ranks[2]
    found = ranks[0]
    for name in ("plain", "next-forward", "two passes"):
        step, rank, text, is_unchanged = found[name]
        assert (step, rank, is_unchanged) == (3, 1, True), (name, text)
        assert "gradient '1.bias' of rank 1 has inf at index (1,) in step 3" in text
    assert found["sample"] is not None
    for name in ("flip", "flip, next-forward"):
        assert found[name][:2] == [4, 2] and "'weight'" in found[name][2]
    assert "check_replicas=5 with strategy" in found["refused"]


def test_settings_turn_the_guards_on(on_ranks):
    script = """
    model = torch.nn.Linear(2, 2)
    optimizer = rabit.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0))
    (model(torch.ones(1, 2)) * (float("nan") if rabit.rank() == 0 else 1)).sum().backward()
    try:
        optimizer.step()
    except rabit.IntegrityError as error:
        report(str(error))
    """

    texts = on_ranks(2, script, RABIT_CHECK_FINITE="1")

    assert texts[0] == texts[1] and "of rank 0 has nan" in texts[0]


def test_parameters_that_come_later_or_thaw_are_looked_at_as_well():
    def on_rank(engine):
        first, later, frozen = (torch.nn.Parameter(torch.ones(3)) for _ in range(3))
        frozen.requires_grad_(False)
        optimizer = rabit_torch.DistributedOptimizer(
            torch.optim.SGD([first, frozen], lr=0.1), [("first", first), ("frozen", frozen)], check_finite=True
        )
        optimizer.add_param_group({"params": [later]})
        texts = []
        for bad in (later, frozen):
            frozen.requires_grad_(bad is frozen)
            optimizer.zero_grad()
            loss = first.sum() + later.sum() + frozen.sum()
            (loss + bad[1] * float("nan") if engine.rank == 1 else loss).backward()
            with pytest.raises(rabit_torch.IntegrityError) as caught:
                optimizer.step()
            texts.append(str(caught.value))
        return texts

    for texts in run_ranks(2, on_rank):
        assert texts[0].startswith("gradient 'parameter.2' of rank 1 has nan at index (1,) in step 1,")
        assert texts[1].startswith("gradient 'frozen' of rank 1 has nan at index (1,) in step 2,")
