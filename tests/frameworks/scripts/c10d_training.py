"""DDP, DDP with the communication hook, and FSDP2 on backend rabit give gloo's parameters."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import fsdp
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn.parallel import DistributedDataParallel

import rabit_torch
import rabit_torch.distributed

torch.set_num_threads(1)
rabit_torch.init()
dist.init_process_group("rabit")
rank, size = dist.get_rank(), dist.get_world_size()
gloo = dist.new_group(backend="gloo")


def model():
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Linear(20, 64),
        nn.ReLU(),
        nn.BatchNorm1d(64),
        nn.Linear(64, 64),
        nn.ReLU(),
        nn.Linear(64, 5),
    )


def train(network, steps=6):
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
    for step in range(steps):
        generator = torch.Generator().manual_seed(step * size + rank)
        optimizer.zero_grad()
        network(torch.randn(8, 20, generator=generator)).square().mean().backward()
        optimizer.step()
    return network


def parameters(network):
    return torch.cat(
        [
            getattr(p, "full_tensor", lambda p=p: p)().detach().reshape(-1)
            for p in network.parameters()
        ]
    )


def check(what, found, expected):
    error = (found - expected).abs().max().item()
    assert error <= 1e-6, (what, error)
    everywhere = [torch.empty_like(found) for _ in range(size)]
    dist.all_gather(everywhere, found, group=gloo)
    assert all(torch.equal(each, found) for each in everywhere), f"{what}: ranks differ"


expected = parameters(train(DistributedDataParallel(model(), process_group=gloo)))
check("DDP", parameters(train(DistributedDataParallel(model(), bucket_cap_mb=0.01))), expected)

hooked = DistributedDataParallel(model(), process_group=gloo)
hooked.register_comm_hook(None, rabit_torch.ddp_hook)
check("DDP with ddp_hook", parameters(train(hooked)), expected)

compressed = DistributedDataParallel(model(), process_group=gloo)
compressed.register_comm_hook(rabit_torch.Compression.bf16, rabit_torch.ddp_hook)
error = (parameters(train(compressed)) - expected).abs().max().item()
assert 0 < error < 0.05, error


def sharded(mesh):
    network = model()
    for layer in network:
        if isinstance(layer, nn.Linear):
            fsdp.fully_shard(layer, mesh=mesh)
    return fsdp.fully_shard(network, mesh=mesh)


if hasattr(fsdp, "fully_shard"):  # before torch 2.6 FSDP2 is for CUDA alone
    reference = parameters(train(sharded(DeviceMesh.from_group(gloo, "cpu"))))
    check("FSDP2", parameters(train(sharded(init_device_mesh("cpu", (size,))))), reference)

sparse = [nn.Embedding(50, 4, sparse=True) for _ in range(2)]
for each in sparse:
    torch.manual_seed(2)
    nn.init.normal_(each.weight)
for each, group in zip(sparse, (None, gloo), strict=True):
    network = DistributedDataParallel(each, process_group=group)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    network(torch.tensor([rank, 7, 7])).square().sum().backward()
    optimizer.step()
check(
    "sparse gradients", sparse[0].weight.detach().reshape(-1), sparse[1].weight.detach().reshape(-1)
)
dist.destroy_process_group()
assert rabit_torch.is_initialized()
rabit_torch.shutdown()
print(f"done {rank} {os.getpid()}", flush=True)
