"""offload="cpu": parameters on a device, their optimizer's state and its update on the host.

The device is the emulated one, whose memory the host cannot touch. None of this has run on a GPU.
"""

from __future__ import annotations

import pytest
from support import emulated_cuda

pytestmark = pytest.mark.skipif(bool(emulated_cuda.MISSING), reason=emulated_cuda.MISSING)

TRAIN = """
def train(is_on_device, kind=torch.float32, steps=range(4), **options):
    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(8, 30), torch.nn.ReLU(), torch.nn.Linear(30, 2)).to(kind)
    if is_on_device:
        to_device(model, rank)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    optimizer = rabit.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), **options)
    return take_steps(model, optimizer, kind, is_on_device, steps)


def values_of(model):
    return [each.detach().cpu() for each in model.parameters()]
"""


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_it_has_the_bits_of_training_on_the_host(on_devices, kind, tmp_path):
    results = on_devices(2, TRAIN + f"""
kind = torch.{kind}
""" + """
wrong = []
for stage in ("optimizer", "gradients"):
    expected = values_of(train(False, kind, shard=stage)[0])
    for options in ({}, {"offload": "cpu"}, {"offload": f"disk:{os.environ['FOLDER']}/{stage}"}):
        if not equal(values_of(train(True, kind, shard=stage, **options)[0]), expected):
            wrong.append([stage, str(options)])
report(wrong)
""", FOLDER=str(tmp_path / "state"))
    assert results == [[], []]


def test_the_optimizer_steps_on_the_host_and_hears_what_is_written_on_the_device(on_devices):
    results = on_devices(2, TRAIN + """
def trained(is_on_device, offload):
    model, optimizer = train(is_on_device, shard="gradients", offload=offload)
    kept = optimizer._rabit_inner.state
    places = {each.device.type for place in optimizer._rabit_places for each in kept[place.slice].values()}
    places |= {each.device.type for group in optimizer.param_groups for each in group["params"]}
    saved = optimizer.state_dict(whole=True)
    with torch.no_grad():
        model[2].bias.fill_(3.0)
    rabit.broadcast_parameters(model.state_dict(), root_rank=0)
    batch = torch.ones(3, 8)
    model(on_device(batch, rank) if is_on_device else batch).sum().backward()
    norm = optimizer.clip_grad_norm_(0.5)
    optimizer.step()
    optimizer.load_state_dict(saved)
    model(on_device(batch, rank) if is_on_device else batch).sum().backward()
    optimizer.step()
    return places, values_of(model), norm


found, expected = trained(True, "cpu"), trained(False, None)
report([sorted(found[0]), equal(found[1], expected[1]), bool(found[2] == expected[2])])
""")
    assert results == [[["cpu"], True, True]] * 2


def test_without_a_delay_parameters_are_read_in_the_step_alone(on_devices):
    results = on_devices(1, TRAIN + """
from rabit_torch.sharding.copied import CopiedPart

model, optimizer = train(True, shard="gradients", offload="cpu")
model(on_device(torch.ones(3, 8), rank)).sum().backward()
reads, sums = [], CopiedPart._sums
CopiedPart._sums = lambda self: reads.append(self) or sums(self)
optimizer.synchronize()
before = len(reads)
optimizer.step()
report([before, len(reads) > 0])
""")
    assert results == [[0, True]]


def test_a_delayed_update_runs_on_the_host(on_devices):
    results = on_devices(2, TRAIN + """
import warnings

warnings.simplefilter("ignore")
delayed = {"shard": "gradients", "offload": "cpu", "delay_after": 1}
model, optimizer = train(True, **delayed)
other, by = train(False, **delayed)
same = [equal(values_of(model), values_of(other))]
for each in (optimizer, by):
    each.apply_late()
same.append(equal(values_of(model), values_of(other)))
model, optimizer = train(True, **delayed)
with torch.no_grad():
    model[0].weight.fill_(3.0)  # Of which each rank has a part.
model(on_device(torch.ones(3, 8), rank)).sum().backward()
try:
    optimizer.step()
except rabit.InvalidArgument as error:
    same.append("was written after step 4" in str(error))
report(same)
""")
    assert results == [[True] * 3] * 2
