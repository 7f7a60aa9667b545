"""One rank: FSDP2 whose gradients travel by gradient methods."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import rabit_torch
import rabit_torch.distributed

torch.set_num_threads(1)
rabit_torch.init()
dist.init_process_group("rabit")
rank, size = dist.get_rank(), dist.get_world_size()
STEPS = 5


def model(has_bias):
    torch.manual_seed(1)
    layers = [nn.Linear(20, 36, has_bias), nn.ReLU(), nn.Linear(36, 36, has_bias), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(36, 12, has_bias))


def sharded(has_bias):
    network = model(has_bias)
    for layer in network:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    return fully_shard(network)


def train(network, optimizer, first=0, steps=STEPS):
    """The losses of the steps; the learning rate changes with each."""
    losses = []
    for step in range(first, first + steps):
        torch.manual_seed(10 + step * size + rank)
        for group in optimizer.param_groups:
            group["lr"] = 0.1 / (1 + step)
        loss = network(torch.randn(16, 20)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def sgd(network):
    return torch.optim.SGD(network.parameters(), lr=0.1)


def whole(network):
    parts = [each.full_tensor() if hasattr(each, "full_tensor") else each for each in network.parameters()]
    return torch.cat([each.detach().reshape(-1) for each in parts])


def by_fsdp(method, has_bias):
    network = sharded(has_bias)
    optimizer = sgd(network)
    hook = rabit_torch.FsdpMethod(method, network, optimizer)
    losses = train(network, optimizer)
    return whole(network), losses, hook


# The mean of a method is that of torch's own reduce-scatter; with biases some parts are padded.
plain = sharded(True)
plain_losses = train(plain, sgd(plain))
found, losses, _ = by_fsdp("mean", True)
assert torch.equal(found, whole(plain)), "mean"
assert losses == plain_losses, (losses, plain_losses)

# Where a module is one weight, a method sees the same row as behind DDP.
METHODS = ("onebit:small=0", "topk:ratio=0.1,small=0", "bytegrad:small=0", "ef21:ratio=0.2,small=0")
for text in METHODS:
    network = model(False)
    optimizer = sgd(network)
    hook = rabit_torch.DdpMethod(text, network.named_parameters(), optimizer)
    wrapped = DistributedDataParallel(network)
    wrapped.register_comm_hook(hook, rabit_torch.ddp_hook)
    train(wrapped, optimizer)
    found, _, _ = by_fsdp(text, False)
    assert torch.equal(found, whole(network)), text

# Eight bits stay near the run without compression, and are not the same.
found, losses, _ = by_fsdp("bytegrad:small=0", True)
start = torch.cat([each.detach().reshape(-1) for each in model(True).parameters()])
moved, away = (whole(plain) - start).norm(), (found - whole(plain)).norm()
assert 0 < away < 0.05 * moved, (away, moved)
assert losses[0] == plain_losses[0] and losses[-1] < losses[0], losses

# A saved state continues to the same bits.
found, _, _ = by_fsdp("onebit:small=0", True)
network = sharded(True)
optimizer = sgd(network)
hook = rabit_torch.FsdpMethod("onebit:small=0", network, optimizer)
train(network, optimizer, steps=2)
saved = hook.state_dict()
hook = rabit_torch.FsdpMethod("onebit:small=0", network, optimizer)
hook.load_state_dict(saved)
train(network, optimizer, first=2, steps=STEPS - 2)
assert torch.equal(whole(network), found), "saved state"

# What cannot be is refused, on every rank alike.
network = sharded(True)
optimizer = torch.optim.SGD([{"params": [each], "lr": 0.1 + i} for i, each in enumerate(network.parameters())])
rabit_torch.FsdpMethod("onebit:small=0", network, optimizer)
try:
    network(torch.ones(4, 20)).sum().backward()
except rabit_torch.InvalidArgument as error:
    assert "learning rates [0.1, 1.1" in str(error), error
else:
    raise AssertionError("groups with different rates were taken")

dist.destroy_process_group()
rabit_torch.shutdown()
print(f"done {rank} {os.getpid()}", flush=True)
