"""Trains a small CNN on real handwritten digits with rabit.

    rabitrun -np 2 python examples/torch_digits.py

Data: the UCI handwritten digits that scikit-learn ships (1,797 images of 8 x 8 pixels); every rank
trains on its own share of the 1,437 training images, and the test images are never trained on.
"""

from __future__ import annotations

import argparse
import sys
import time

import torch
import torch.nn.functional as functional
from sklearn.datasets import load_digits
from torch import nn

import rabit_torch as rabit


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20, help="passes over the data (default 20)")
    parser.add_argument(
        "--batch-size", type=int, default=32, help="images per step and rank (default 32)"
    )
    parser.add_argument(
        "--lr", type=float, default=2e-3, help="learning rate of Adam (default 0.002)"
    )
    parser.add_argument("--fp16", action="store_true", help="send gradients as float16")
    parser.add_argument(
        "--seed", type=int, default=0, help="of the data order and the weights (default 0)"
    )
    return parser.parse_args()


def digits(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Training and test images (n, 1, 8, 8) in [0, 1], and their labels (n,)."""
    bunch = load_digits()
    images = torch.tensor(bunch.images, dtype=torch.float32).unsqueeze(1) / 16.0
    labels = torch.tensor(bunch.target, dtype=torch.int64)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    held_out = len(images) // 5
    test, train = order[:held_out], order[held_out:]
    return images[train], labels[train], images[test], labels[test]


class DigitNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(64, 64, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Sequential(
            nn.Flatten(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10)
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.features(images))


def main() -> int:
    args = arguments()
    rabit.init()
    torch.manual_seed(args.seed + rabit.rank())
    device = rabit.local_device()  # a GPU of this rank, or the CPU where there is none
    if device.type == "cuda":
        torch.cuda.set_device(device)
    train_images, train_labels, test_images, test_labels = (
        each.to(device) for each in digits(args.seed)
    )

    model = DigitNet().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    rabit.broadcast_parameters(model.state_dict(), root_rank=0)
    rabit.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = rabit.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=rabit.Compression.fp16 if args.fp16 else rabit.Compression.none,
    )

    per_epoch = len(train_images) // (args.batch_size * rabit.size())
    started, seen = time.perf_counter(), 0
    for epoch in range(args.epochs):
        # The same order on every rank; each takes every size()-th batch of it.
        order = torch.randperm(len(train_images), generator=torch.Generator().manual_seed(epoch))
        total = 0.0
        for step in range(per_epoch):
            start = (step * rabit.size() + rabit.rank()) * args.batch_size
            batch = order[start : start + args.batch_size]
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(train_images[batch]), train_labels[batch])
            loss.backward()
            optimizer.step()
            total += loss.item()
            seen += len(batch)
        loss = rabit.allreduce(torch.tensor(total / per_epoch), name="loss").item()
        if rabit.rank() == 0:
            rate = seen * rabit.size() / (time.perf_counter() - started)
            print(
                f"epoch {epoch + 1:2}/{args.epochs}  loss {loss:.4f}  {rate:,.0f} samples/s",
                flush=True,
            )

    seconds = time.perf_counter() - started
    with torch.no_grad():
        correct = (model(test_images).argmax(dim=1) == test_labels).float().mean()
    accuracy = rabit.allreduce(correct, name="accuracy").item()
    report = rabit.summary()
    if rabit.rank() == 0:
        print(
            f"test accuracy {100 * accuracy:.2f} % on {len(test_images)} images that were not trained on"
        )
        print(f"{seen * rabit.size() / seconds:,.0f} samples/s over {rabit.size()} ranks")
        print(report, flush=True)
    rabit.shutdown()
    return 0 if accuracy >= 0.97 else 1


if __name__ == "__main__":
    sys.exit(main())
