"""One rank of a training job of which rank 1 ends in its third step.

MODE: ddp, hook (DDP with ddp_hook), fsdp (FSDP2).  END: raise, kill, shutdown.
A survivor prints where it learned of it and from which exception.
"""

import os
import signal
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import rabit_torch
import rabit_torch.distributed

torch.set_num_threads(1)
rank, size = int(os.environ["RABIT_RANK"]), int(os.environ["RABIT_SIZE"])
mode, end = os.environ["MODE"], os.environ["END"]


def wrapped(model):
    if mode == "fsdp":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (size,))
        for layer in model:
            fully_shard(layer, mesh=mesh)
        return fully_shard(model, mesh=mesh)
    model = DistributedDataParallel(model, bucket_cap_mb=0.001)
    if mode == "hook":
        model.register_comm_hook(rabit_torch.Compression.none, rabit_torch.ddp_hook)
    return model


def end_here():
    if end == "raise":
        raise ValueError("the data of rank 1 is bad")
    if end == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    dist.destroy_process_group()
    if mode == "hook":
        rabit_torch.shutdown()
    sys.exit(0)


if mode == "hook":
    rabit_torch.init()
meeting = f"file://{os.environ['MEETING']}"
limit = timedelta(seconds=40)
dist.init_process_group("rabit", init_method=meeting, rank=rank, world_size=size, timeout=limit)
torch.manual_seed(0)
model = wrapped(nn.Sequential(*[nn.Linear(16, 16) for _ in range(4)]))
where = "nowhere"
try:
    for step in range(6):
        if rank == 1 and step == 3:
            end_here()
        where = "forward"
        loss = model(torch.ones(2, 16)).sum()
        where = "backward"
        loss.backward()
except rabit_torch.RabitError as error:
    print(f"survivor {rank}: {where} raised {type(error).__name__}: {error}", flush=True)
