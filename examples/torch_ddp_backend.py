"""DistributedDataParallel or FSDP2 on rabit's engine: backend "rabit" of torch.distributed.

    torchrun --nproc-per-node 2 examples/torch_ddp_backend.py
    torchrun --nproc-per-node 2 examples/torch_ddp_backend.py --sharded
    torchrun --nproc-per-node 2 examples/torch_ddp_backend.py --backend gloo

The script is an ordinary one of torch.distributed, but for one import and the name of the backend.
"""

from __future__ import annotations

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

import rabit_torch.distributed  # noqa: F401  # makes the backend known


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="rabit", help="rabit (default) or gloo")
    parser.add_argument("--sharded", action="store_true", help="FSDP2 in place of DDP")
    parser.add_argument("--steps", type=int, default=200, help="training steps (200)")
    parser.add_argument("--batch-size", type=int, default=64, help="samples per step and rank (64)")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    torch.set_num_threads(1)
    dist.init_process_group(args.backend)
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    teacher = torch.randn(64, 8)
    network: nn.Module = nn.Sequential(
        nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 8)
    )
    if args.sharded:
        from torch.distributed.fsdp import fully_shard  # since torch 2.6

        model: nn.Module = fully_shard(network, mesh=init_device_mesh("cpu", (size,)))
    else:
        model = DistributedDataParallel(network)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    torch.manual_seed(1 + rank)
    begin = time.perf_counter()
    for step in range(1, args.steps + 1):
        x = torch.randn(args.batch_size, 64)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), (x @ teacher).tanh())
        loss.backward()
        optimizer.step()
        if step % max(1, args.steps // 4) == 0:
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            if rank == 0:
                print(f"step {step}: mean loss {mean.item() / size:.4f}", flush=True)
    if rank == 0:
        print(f"{args.steps / (time.perf_counter() - begin):.1f} steps/s on {args.backend}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
