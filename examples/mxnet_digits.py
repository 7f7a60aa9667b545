"""Trains a small Gluon CNN on real handwritten digits with rabit.

    rabitrun -np 2 python examples/mxnet_digits.py

Data: the UCI handwritten digits that scikit-learn ships (1,797 images of 8 x 8 pixels); every rank
trains on its own share of the 1,437 training images, and the test images are never trained on.
"""

from __future__ import annotations

import argparse
import sys
import time

import numpy as np
from sklearn.datasets import load_digits

import rabit_mxnet as rabit  # before mxnet: it gives NumPy the names that MXNet uses

import mxnet as mx  # isort: skip


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=15, help="passes over the data (default 15)")
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


def digits(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Training and test images (n, 1, 8, 8) in [0, 1], and their labels (n,)."""
    bunch = load_digits()
    images = bunch.images.astype("float32")[:, None] / 16.0
    labels = bunch.target.astype("float32")
    order = np.random.RandomState(seed).permutation(len(images))
    held_out = len(images) // 5
    test, train = order[:held_out], order[held_out:]
    return images[train], labels[train], images[test], labels[test]


def digit_net() -> mx.gluon.Block:
    net = mx.gluon.nn.HybridSequential()
    net.add(
        mx.gluon.nn.Conv2D(32, 3, padding=1, activation="relu"),
        mx.gluon.nn.Conv2D(64, 3, padding=1, activation="relu"),
        mx.gluon.nn.MaxPool2D(2),
        mx.gluon.nn.Conv2D(64, 3, padding=1, activation="relu"),
        mx.gluon.nn.MaxPool2D(2),
        mx.gluon.nn.Flatten(),
        mx.gluon.nn.Dense(128, activation="relu"),
        mx.gluon.nn.Dense(10),
    )
    return net


def main() -> int:
    args = arguments()
    rabit.init()
    rank, size = rabit.rank(), rabit.size()
    mx.random.seed(args.seed + rank)
    train_images, train_labels, test_images, test_labels = digits(args.seed)

    net = digit_net()
    net.initialize(mx.init.Xavier())
    params = net.collect_params()
    rabit.broadcast_parameters(params, root_rank=0)  # as soon as the first batch gives the shapes
    trainer = rabit.DistributedTrainer(
        params,
        "adam",
        {"learning_rate": args.lr},
        compression_params={"type": "fp16" if args.fp16 else "none"},
    )
    loss_of = mx.gluon.loss.SoftmaxCrossEntropyLoss()

    per_epoch = len(train_images) // (args.batch_size * size)
    started, seen = time.perf_counter(), 0
    for epoch in range(args.epochs):
        # The same order on every rank; each takes every size()-th batch of it.
        order = np.random.RandomState(epoch).permutation(len(train_images))
        total = mx.nd.zeros((1,))
        for step in range(per_epoch):
            start = (step * size + rank) * args.batch_size
            batch = order[start : start + args.batch_size]
            images, labels = mx.nd.array(train_images[batch]), mx.nd.array(train_labels[batch])
            with mx.autograd.record():
                loss = loss_of(net(images), labels)
            loss.backward()
            trainer.step(args.batch_size)
            total += loss.mean()
            seen += len(batch)
        loss = rabit.allreduce(total / per_epoch, name="loss").asscalar()
        if rank == 0:
            rate = seen * size / (time.perf_counter() - started)
            print(
                f"epoch {epoch + 1:2}/{args.epochs}  loss {loss:.4f}  {rate:,.0f} samples/s",
                flush=True,
            )

    seconds = time.perf_counter() - started
    correct = (net(mx.nd.array(test_images)).argmax(axis=1) == mx.nd.array(test_labels)).mean()
    accuracy = rabit.allreduce(correct, name="accuracy").asscalar()
    report = rabit.summary()
    if rank == 0:
        print(
            f"test accuracy {100 * accuracy:.2f} % on {len(test_images)} images that were not trained on"
        )
        print(f"{seen * size / seconds:,.0f} samples/s over {size} ranks")
        print(report, flush=True)
    rabit.shutdown()
    return 0 if accuracy >= 0.97 else 1


if __name__ == "__main__":
    sys.exit(main())
