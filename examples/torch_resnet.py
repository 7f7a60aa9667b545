"""Trains a ResNet-20 on images of CIFAR-10's shape; the lines marked with + make it distributed.

    rabitrun -np 2 python examples/torch_resnet.py

Data: made from a seed, ten classes of 3 x 32 x 32 pixels, so that nothing has to be downloaded; put
torchvision.datasets.CIFAR10 in place of `images` for the real ones.
"""

from __future__ import annotations

import argparse
import sys

import torch
import torch.nn.functional as functional
from torch import nn

import rabit_torch as rabit


class Block(nn.Module):
    def __init__(self, planes_in: int, planes: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(planes_in, planes, 3, stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(planes)
        self.second = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(planes)
        is_same = stride == 1 and planes_in == planes
        self.shortcut = nn.Identity() if is_same else nn.Conv2d(planes_in, planes, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = functional.relu(self.first_norm(self.first(x)))
        return functional.relu(self.second_norm(self.second(out)) + self.shortcut(x))


def resnet(blocks: int, width: int) -> nn.Module:
    """He et al., "Deep residual learning for image recognition", 2016, section 4.2."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, width, 3, 1, 1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
    ]
    planes_in = width
    for stage in range(3):
        planes = width << stage
        for each in range(blocks):
            layers.append(Block(planes_in, planes, 2 if stage > 0 and each == 0 else 1))
            planes_in = planes
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(planes_in, 10))


def images(count: int, seed: int) -> torch.utils.data.TensorDataset:
    """A pattern for each class, the same for every seed, moved about and under noise."""
    patterns = torch.randn(10, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    patterns = functional.avg_pool2d(patterns, 5, stride=1, padding=2) * 5
    random = torch.Generator().manual_seed(seed)
    labels = torch.randint(10, (count,), generator=random)
    moves = torch.randint(-2, 3, (count, 2), generator=random).tolist()
    rows = [patterns[label].roll(move, (1, 2)) for label, move in zip(labels, moves, strict=True)]
    return torch.utils.data.TensorDataset(
        torch.stack(rows) + torch.randn(count, 3, 32, 32, generator=random), labels
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=5, help="passes over the data (default 5)")
    parser.add_argument("--images", type=int, default=2000, help="to train on (default 2000)")
    parser.add_argument("--blocks", type=int, default=3, help="in each stage (default 3)")
    parser.add_argument("--width", type=int, default=16, help="of the first stage (default 16)")
    args = parser.parse_args()

    rabit.init()  # +
    torch.manual_seed(rabit.rank())
    model = resnet(args.blocks, args.width)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    optimizer = rabit.DistributedOptimizer(optimizer, model.named_parameters())  # +
    rabit.broadcast_parameters(model.state_dict(), root_rank=0)  # +

    data = images(args.images, seed=1)
    share = torch.utils.data.DistributedSampler(data, rabit.size(), rabit.rank())
    loader = torch.utils.data.DataLoader(data, batch_size=50, sampler=share, drop_last=True)
    for epoch in range(args.epochs):
        share.set_epoch(epoch)
        model.train()
        for pixels, labels in loader:
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(pixels), labels)
            loss.backward()
            optimizer.step()
        mean = rabit.allreduce(loss.detach(), name="loss").item()
        if rabit.rank() == 0:
            print(f"epoch {epoch + 1}/{args.epochs}  loss {mean:.3f}", flush=True)

    model.eval()
    # Running statistics of the batch norms differ between ranks: those of rank 0 are kept.
    rabit.broadcast_parameters(model.state_dict(), root_rank=0)
    pixels, labels = images(500, seed=2).tensors
    with torch.no_grad():
        accuracy = (model(pixels).argmax(dim=1) == labels).float().mean().item()
    if rabit.rank() == 0:
        print(f"test accuracy {100 * accuracy:.1f} %")
    rabit.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
