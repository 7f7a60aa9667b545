"""Measures training speed on synthetic images: images per second on each rank and in all.

    rabitrun -np 2 python examples/torch_synthetic_benchmark.py
    rabitrun -np 2 python examples/torch_synthetic_benchmark.py --compression bf16

No data is read and no accuracy is meant: what is measured is the step, with its communication.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import nn

import rabit_torch as rabit


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch-size", type=int, default=16, help="images per step and rank (16)")
    parser.add_argument("--width", type=int, default=32, help="channels of the first block (32)")
    parser.add_argument("--warmup", type=int, default=3, help="batches before the clock starts (3)")
    parser.add_argument("--batches", type=int, default=5, help="batches per measurement (5)")
    parser.add_argument("--measurements", type=int, default=5, help="measurements (5)")
    parser.add_argument(
        "--compression",
        choices=("none", "fp16", "bf16"),
        default="none",
        help="what gradients travel as (none)",
    )
    parser.add_argument("--adasum", action="store_true", help="combine steps adaptively")
    return parser.parse_args()


def network(width: int) -> nn.Module:
    """Six convolutions with batch normalisation, for images of 3 x 32 x 32."""
    layers: list[nn.Module] = []
    channels = 3
    for block in range(3):
        for _ in range(2):
            layers += [
                nn.Conv2d(channels, width << block, 3, padding=1),
                nn.BatchNorm2d(width << block),
                nn.ReLU(),
            ]
            channels = width << block
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels * 16, 10))


def main() -> None:
    args = arguments()
    rabit.init()
    torch.set_num_threads(1)
    torch.manual_seed(rabit.rank())
    model = network(args.width)
    optimizer = rabit.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9),
        named_parameters=model.named_parameters(),
        compression=getattr(rabit.Compression, args.compression),
        op=rabit.Adasum if args.adasum else rabit.Average,
    )
    rabit.broadcast_parameters(model.state_dict(), root_rank=0)
    rabit.broadcast_optimizer_state(optimizer, root_rank=0)
    images = torch.randn(args.batch_size, 3, 32, 32)
    labels = torch.randint(0, 10, (args.batch_size,))

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()

    for _ in range(args.warmup):
        step()
    speeds = []
    for _ in range(args.measurements):
        begin = time.perf_counter()
        for _ in range(args.batches):
            step()
        speeds.append(args.batches * args.batch_size / (time.perf_counter() - begin))
    everywhere = rabit.allgather(torch.tensor([speeds], dtype=torch.float64), name="speeds")
    if rabit.rank() == 0:
        totals = everywhere.sum(dim=0)
        count = sum(p.numel() for p in model.parameters())
        print(f"{count:,} parameters, batch {args.batch_size}, {rabit.size()} ranks")
        print(
            f"images/s: {everywhere.median().item():.1f} per rank, {totals.median().item():.1f} in all"
        )
    rabit.shutdown()


if __name__ == "__main__":
    main()
