"""Parameters in parts on a device: shard="parameters" of a model whose tensors the host cannot touch.

The device is the emulated one. None of this has run on a GPU.
"""

from __future__ import annotations

import pytest
from support import emulated_cuda

pytestmark = pytest.mark.skipif(bool(emulated_cuda.MISSING), reason=emulated_cuda.MISSING)

TRAIN = """
from torch.utils.checkpoint import checkpoint
from rabit_torch import sharding


class Blocks(torch.nn.Module):
    # Of which one is used twice, and its values are computed again in the backward pass.
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(8, 30)
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(30, 30) for _ in range(3))
        self.last = torch.nn.Linear(30, 2)

    def forward(self, hidden):
        hidden = self.first(hidden).relu()
        for block in (*self.blocks, self.blocks[0]):
            hidden = checkpoint(block, hidden, use_reentrant=False).tanh()
        return self.last(hidden)


def train(is_on_device, kind=torch.float32, steps=3, keep=40, shard=(), **options):
    torch.manual_seed(7)
    model = Blocks().to(kind)
    if is_on_device:
        to_device(model, rank)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    sharding.shard(model, keep=keep, **dict(shard))
    optimizer = rabit.DistributedOptimizer(
        optimizer, model.named_parameters(), shard="parameters", model=model, **options
    )
    return take_steps(model, optimizer, kind, is_on_device, range(steps), 0.5)


def values_of(model):
    with sharding.gathered(model):
        return [each.detach().cpu().clone() for each in model.parameters()]
"""


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_it_has_the_bits_of_training_on_the_host(on_devices, kind, tmp_path):
    results = on_devices(2, TRAIN + f"""
kind = torch.{kind}
""" + """
expected = values_of(train(False, kind)[0])
wrong = []
for options in (
    {},
    {"keep": 0},  # of some, this rank has no part
    {"shard": {"window": 0}},
    {"shard": {"backward_within": 1}},
    {"offload": "cpu"},
    {"offload": f"disk:{os.environ['FOLDER']}"},
):
    if not equal(values_of(train(True, kind, **options)[0]), expected):
        wrong.append(str(options))
report(wrong)
""", FOLDER=str(tmp_path / "state"))
    assert results == [[], []]


def test_with_nccl_nothing_goes_through_the_host(on_devices):
    results = on_devices(2, TRAIN + """
expected = values_of(train(False)[0])
copies = driver.calls("cuMemcpyDtoHAsync_v2")
model, optimizer = train(True)
gathers = optimizer._rabit_gathers
slots = [unit._memory.device.type for unit in gathers.units if unit.is_gathered]
report([equal(values_of(model), expected), set(slots) == {"cuda"}, driver.calls("cuMemcpyDtoHAsync_v2") - copies])
""", "nccl")
    assert results == [[True, True, 0]] * 2


@pytest.mark.parametrize("backend", ["builtin", "nccl"])
def test_a_slot_is_written_again_behind_the_kernels_that_read_it(on_devices, backend):
    """torch gives the memory that a unit had to the next one, while a kernel that was put on the stream is late."""
    results = on_devices(2, TRAIN + """
import ctypes
import time

driver.library.rabit_emulated_delays(rank + 1, 300)
torch.manual_seed(0)
layers = [torch.nn.Linear(64, 64, bias=False) for _ in range(4)]
expected = [[float(value) for value in layer.weight[0]] for layer in layers]
model = to_device(torch.nn.Sequential(*layers), rank)
sharding.shard(model, keep=0, window=0)
pool = sharding.model.divided_model(model).gathers.pool
slot = on_device(torch.zeros(64 * 64, dtype=torch.float32), rank).view(torch.uint8).flatten()
pool.take = lambda count, device: slot
found = []


def late(layer, given, result):
    row = (ctypes.c_float * 64).from_address(slot.inside.data_ptr())

    def kernel():
        time.sleep(0.05)
        found.append(list(row))

    driver.launch(rank, kernel)


for layer in layers:
    layer.register_forward_hook(late)
with torch.no_grad():
    model(on_device(torch.ones(1, 64), rank))
driver.finish(rank)
report(found == expected)
""", backend)
    assert results == [True, True]


def test_every_stream_that_reads_a_unit_waits_for_it(on_devices):
    results = on_devices(2, TRAIN + """
import ctypes
import threading

model, _ = train(True)
first = sharding.whole(model.first.weight).cpu()
other = cuda_tensor.new_stream(rank)
found, has_read = [], threading.Event()
driver.hold(True)
with sharding.gathered(model):  # Its stream waits for copies to the device, which do not begin.
    cuda_tensor.current = other
    row = (ctypes.c_float * 8).from_address(model.first.weight.detach().inside.data_ptr())

    def read():
        found.extend(row)
        has_read.set()

    driver.launch(rank, read, other.cuda_stream)
    has_read.wait(0.2)  # A stream that does not wait reads it now.
    driver.hold(False)
    driver.finish(rank, other.cuda_stream)
report(found == first[0].tolist())
""")
    assert results == [True, True]


def test_parts_are_saved_and_loaded_on_either_side(on_devices, tmp_path):
    results = on_devices(2, TRAIN + """
checkpoints, found = [], []
for source, target in ((True, False), (False, True), (True, True)):
    model, optimizer = train(source)
    folder = f"{os.environ['FOLDER']}/{len(checkpoints)}"
    kept = rabit.Checkpoint(folder, model=model, optimizer=optimizer)
    kept.save(step=3)
    kept.close()
    other, by = train(target, steps=1)
    kept = rabit.Checkpoint(folder, model=other, optimizer=by)
    kept.restore()
    kept.close()
    found.append(equal(values_of(other), values_of(model)))
    states = [each.state_dict(whole=True)["state"] for each in (optimizer, by)]
    found.append(all(
        torch.equal(states[0][name][key].cpu(), states[1][name][key].cpu())
        for name in states[0] for key in ("exp_avg", "step")
    ))
    checkpoints.append(folder)
report(found)
""", FOLDER=str(tmp_path / "saved"))
    assert results == [[True] * 6] * 2


def test_values_are_written_and_loaded_whole(on_devices):
    results = on_devices(2, TRAIN + """
model, _ = train(True)
with sharding.gathered(model, write=True), torch.no_grad():
    model.first.weight.mul_(2.0)
    model.first.bias.fill_(3.0)
doubled = [values_of(model)[0]]
with sharding.gathered(model):
    saved = {name: value.detach().cpu().clone() for name, value in model.state_dict().items()}
other, _ = train(True, steps=1)
other.load_state_dict(saved)
parts = model.state_dict()
mine = parts["first.weight"].value
third, _ = train(True, steps=1)
third.load_state_dict(parts)
expected = values_of(model)
again, _ = train(True, steps=1)
for name, parameter in again.named_parameters():  # As an elastic job takes its commits.
    if hasattr(parameter, "rabit_divided"):
        parameter.rabit_divided.take([parts[name]])
    else:
        parameter.data.copy_(parts[name])
report([
    torch.equal(saved["first.weight"], doubled[0]), equal(values_of(other), expected),
    equal(values_of(third), expected), equal(values_of(again), expected), mine.device.type,
])
""")
    assert results == [[True, True, True, True, "cpu"]] * 2


def test_a_model_without_values_gets_them_on_the_default_device(on_devices):
    results = on_devices(2, TRAIN + """
def built(device):
    # `with torch.device(device):`, which a torch without CUDA does not have.
    empty = torch.empty
    torch.empty = lambda *size, **options: empty(*size, **(options or {"device": device}))
    torch.manual_seed(0)
    with torch.device("meta"):
        model = torch.nn.Sequential(torch.nn.Linear(8, 30), torch.nn.BatchNorm1d(30))
    sharding.shard(model, keep=40)
    torch.empty = empty
    return model


here, there = built(torch.device("cpu")), built(torch.device("cuda", rank))
report([
    equal(values_of(here), values_of(there)),
    [each.device.type for each in (*there.parameters(), *there.buffers())],
])
""")
    assert results == [[True, ["cuda"] * 7]] * 2


def test_what_needs_host_memory_is_refused(on_devices):
    results = on_devices(1, TRAIN + """
refused = []
for options in ({"gather": "pull"}, {"offload": "disk:nowhere"}):
    try:
        sharding.shard(to_device(Blocks()), keep=0, **options)
    except rabit.InvalidArgument as error:
        refused.append(str(error))
model = to_device(Blocks())
model.last = torch.nn.Linear(30, 2)
try:
    sharding.shard(model, keep=0)
except rabit.InvalidArgument as error:
    refused.append(str(error))
report(refused)
""")
    pull, disk, mixed = results[0]
    assert pull.startswith("shard: gather='pull' has the parts in host memory, and the model is on cuda:0. Leave it")
    assert disk.startswith("shard: offload='disk:") and "DistributedOptimizer(offload=...)" in disk
    assert mixed == (
        "shard: of Blocks on rank 0, 'first.weight' is on cuda:0, and 'last.weight' is on cpu. Move the model to one "
        "device"
    )
