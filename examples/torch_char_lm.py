"""Trains a small byte-level transformer on the source text of Python's standard library.

    rabitrun -np 2 python examples/torch_char_lm.py

Data: the .py files of the installed standard library, about 1 MB of them; every rank reads other
places of the text, and its last tenth is never trained on.
"""

from __future__ import annotations

import argparse
import math
import sys
import sysconfig
import time
from pathlib import Path

import torch
import torch.nn.functional as functional
from torch import nn

import rabit_torch as rabit


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200, help="training steps (default 200)")
    parser.add_argument(
        "--batch-size", type=int, default=16, help="sequences per step and rank (default 16)"
    )
    parser.add_argument("--context", type=int, default=64, help="bytes per sequence (default 64)")
    parser.add_argument("--width", type=int, default=96, help="of the model (default 96)")
    parser.add_argument("--layers", type=int, default=2, help="of the model (default 2)")
    parser.add_argument(
        "--lr", type=float, default=3e-3, help="learning rate of AdamW (default 0.003)"
    )
    parser.add_argument("--fp16", action="store_true", help="send gradients as float16")
    parser.add_argument("--seed", type=int, default=0, help="of data and weights (default 0)")
    return parser.parse_args()


def library_text(bytes_max: int = 1_000_000) -> tuple[torch.Tensor, torch.Tensor]:
    """The bytes to train on and those held out, as two vectors of int64."""
    text = bytearray()
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        text += path.read_bytes()
        if len(text) >= bytes_max:
            break
    values = torch.frombuffer(text[:bytes_max], dtype=torch.uint8).long()
    split = len(values) * 9 // 10
    return values[:split], values[split:]


def sequences(
    text: torch.Tensor, count: int, context: int, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets, both (count, context): the targets are one byte later."""
    starts = torch.randint(len(text) - context - 1, (count,), generator=generator)
    rows = torch.stack([text[start : start + context + 1] for start in starts.tolist()])
    return rows[:, :-1], rows[:, 1:]


class ByteTransformer(nn.Module):
    """A decoder-only transformer over the 256 values of a byte."""

    def __init__(self, width: int, layers: int, context: int) -> None:
        super().__init__()
        self.bytes = nn.Embedding(256, width)
        self.places = nn.Embedding(context, width)
        layer = nn.TransformerEncoderLayer(
            width, 4, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.out = nn.Linear(width, 256)
        mask = torch.full((context, context), -math.inf).triu(1)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        hidden = self.bytes(rows) + self.places.weight[: rows.shape[1]]
        mask = self.mask[: rows.shape[1], : rows.shape[1]]
        return self.out(self.layers(hidden, mask=mask, is_causal=True))


def loss_of(model: nn.Module, rows: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(model(rows).flatten(0, 1), targets.flatten())


def main() -> int:
    args = arguments()
    rabit.init()
    torch.manual_seed(args.seed + rabit.rank())
    train, held_out = library_text()

    model = ByteTransformer(args.width, args.layers, args.context)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    rabit.broadcast_parameters(model.state_dict(), root_rank=0)
    rabit.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = rabit.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=rabit.Compression.fp16 if args.fp16 else rabit.Compression.none,
    )

    places = torch.Generator().manual_seed(args.seed * 1000 + rabit.rank())
    started = time.perf_counter()
    for step in range(1, args.steps + 1):
        rows, targets = sequences(train, args.batch_size, args.context, places)
        optimizer.zero_grad()
        loss = loss_of(model, rows, targets)
        loss.backward()
        optimizer.step()
        if step % 25 == 0 or step == args.steps:
            mean = rabit.allreduce(loss.detach(), name="loss").item()
            if rabit.rank() == 0:
                rate = step * args.batch_size * args.context * rabit.size()
                rate /= time.perf_counter() - started
                bits = mean / math.log(2)
                print(
                    f"step {step:4}/{args.steps}  {bits:.3f} bits per byte  {rate:,.0f} bytes/s",
                    flush=True,
                )

    same_everywhere = torch.Generator().manual_seed(1)
    with torch.no_grad():
        loss = loss_of(model, *sequences(held_out, 64, args.context, same_everywhere))
    bits = rabit.allreduce(loss, name="held_out").item() / math.log(2)
    report = rabit.summary()
    if rabit.rank() == 0:
        print(f"{bits:.3f} bits per byte on text that was not trained on (uniform: 8)")
        print(report, flush=True)
    rabit.shutdown()
    return 0 if bits < 4.5 else 1


if __name__ == "__main__":
    sys.exit(main())
