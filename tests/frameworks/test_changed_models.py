"""Models that change after their optimizer was wrapped, and models that go away."""

from __future__ import annotations

import pytest
import torch

HEAD = """
def wrapped(model, **options):
    made = torch.optim.SGD(model.parameters(), lr=0.0)
    return rabit.DistributedOptimizer(made, model.named_parameters(), **options)

def step(model, optimizer):
    for each in model.parameters():
        each.grad = None
    optimizer.zero_grad()
    wide = next(model.parameters())
    model(torch.full((1, wide.shape[1]), rabit.rank() + 1.0, dtype=wide.dtype)).sum().backward()
    optimizer.step()
"""

CONVERTED = """
def double(model):
    model.double()

def half(model):
    model.half()

def smaller(model):
    model[0].weight.data = torch.zeros(4, 5)
    model[0].bias.data = torch.zeros(4)
    model[1].weight.data = torch.zeros(3, 4)

def told(change, out=8, **options):
    model = torch.nn.Sequential(torch.nn.Linear(8, out), torch.nn.Linear(out, 3))
    optimizer = wrapped(model, **options)
    for _ in range(3):
        step(model, optimizer)
    if hasattr(optimizer, "flush"):
        optimizer.flush()
    change(model)
    try:
        step(model, optimizer)
        if hasattr(optimizer, "flush"):
            optimizer.flush()
    except rabit.InvalidArgument as error:
        return str(error)
    return "nothing was said"

found = {
    "half": told(half),
    "double": told(double),
    "smaller": told(smaller),
    "large": told(double, out=40_000),
    "halves": told(double, overlap="reduce-scatter"),
    "next-forward": told(double, overlap="next-forward"),
    "topk": told(double, strategy="topk"),
    "fp16": told(half, compression=rabit.Compression.fp16),
}
report(found)
"""


def test_a_gradient_of_another_type_or_size_than_before_is_refused(on_ranks):
    for rank, found in enumerate(on_ranks(2, HEAD + CONVERTED)):
        for case, text in found.items():
            assert f"on rank {rank} has " in text and "wrap a new optimizer" in text, (case, text)
        assert "of type torch.float16; those before had 3 of type torch.float32" in found["half"]
        assert "has 12 elements" in found["smaller"] and "had 24" in found["smaller"]


BEFORE = """
model = torch.nn.Sequential(torch.nn.Linear(8, 40_000), torch.nn.Linear(40_000, 3))
optimizer = wrapped(model)
model.double()
for _ in range(3):
    step(model, optimizer)
report([[str(each.grad.dtype), each.grad[0].mean().item()] for each in model[:1].parameters()]
       + [torch.equal(*rabit.allgather(model[0].weight.grad[None], name="same"))])
"""


def test_a_model_may_be_converted_between_the_wrapping_and_the_first_step(on_ranks):
    first, second = on_ranks(2, HEAD + BEFORE)

    assert first == second and first[0][0] == "torch.float64" and first[-1] is True


WANTED = """
def gradients(size):
    model = torch.nn.Sequential(*(torch.nn.Linear(size, size, bias=False) for _ in range(3))).bfloat16()
    for each in model.parameters():
        torch.nn.init.eye_(each)
        each.grad_dtype = torch.float32
    optimizer = wrapped(model)
    for _ in range(3):
        step(model, optimizer)
    return [[str(each.grad.dtype), each.grad.min().item(), each.grad.max().item()] for each in model.parameters()]

report([gradients(8), gradients(400)])
"""


@pytest.mark.skipif(
    not hasattr(torch.Tensor, "grad_dtype"), reason="this torch gives gradients their parameter's type"
)
def test_parameters_may_want_gradients_of_another_type(on_ranks):
    for found in on_ranks(2, HEAD + WANTED):
        assert found == [[["torch.float32", 1.5, 1.5]] * 3] * 2


FROZEN = """
rabit.shutdown()
os.environ["RABIT_STALL_WARNING"], os.environ["RABIT_STALL_ABORT"] = "1", "4"
rabit.init()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 1))
optimizer = wrapped(model)
for _ in range(3):
    step(model, optimizer)
model[0].requires_grad_(False)
step(model, optimizer)  # frozen on every rank
model[0].requires_grad_(True)
step(model, optimizer)
if rabit.rank() == 1:
    model[0].requires_grad_(False)
try:
    step(model, optimizer)
    report("nothing was said")
except rabit.RabitError as error:
    report(str(error))
    wait_for_all()
    os._exit(0)  # The job has failed.
"""


def test_a_layer_that_one_rank_alone_has_frozen_is_named(on_ranks):
    first, second = on_ranks(2, HEAD + FROZEN)

    assert "gradient.0.weight..1.bias" in first and "rank 1" in first, first
    assert "without gradient.0.bias, gradient.0.weight" in second, second


GONE = """
import gc
import weakref

def is_gone(**options):
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 3))
    optimizer = wrapped(model, **options)
    for _ in range(3):
        step(model, optimizer)
    if hasattr(optimizer, "flush"):
        optimizer.flush()
    parameter = weakref.ref(model[0].weight)
    del model, optimizer
    gc.collect()
    return parameter() is None

report([is_gone(), is_gone(overlap="next-forward"), is_gone(overlap="reduce-scatter"), is_gone(strategy="topk")])
"""


def test_a_model_goes_with_its_last_user(on_ranks):
    assert on_ranks(2, HEAD + GONE) == [[True] * 4] * 2


DROPPED = """
import gc

def drop(strategy):
    model = torch.nn.Linear(8, 3)
    optimizer = wrapped(model, strategy=strategy)
    for _ in range(4):
        step(model, optimizer)

gc.disable()
drop("async")
drop("local:every=3")
if rabit.rank() == 0:
    gc.collect()
report("shuts down now")
"""


def test_methods_that_end_together_wait_for_each_other_whoever_collects_garbage(on_ranks):
    assert on_ranks(2, HEAD + DROPPED) == ["shuts down now"] * 2
