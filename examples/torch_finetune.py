"""Fine-tunes a small transformer: a new head, a slow body, a frozen embedding.

    rabitrun -np 2 python examples/torch_finetune.py

Data: sequences of 16 tokens, made from a seed.  The body first learns to name the token in the middle
on rank 0 alone, as a pretrained model would come from a file; then all ranks tune it to tell
sequences that rise from those that fall.
"""

from __future__ import annotations

import argparse
import sys

import torch
import torch.nn.functional as functional
from torch import nn

import rabit_torch as rabit

TOKENS, LENGTH, WIDTH = 32, 16, 32


class Body(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, WIDTH)
        self.places = nn.Parameter(torch.randn(LENGTH, WIDTH) / 10)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 64, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.layers(self.embedding(rows) + self.places).mean(dim=1)


def sequences(count: int, random: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens (count, LENGTH) that rise (1) or fall (0) around a circle, and which they do."""
    rises = torch.randint(2, (count,), generator=random)
    start = torch.randint(TOKENS, (count, 1), generator=random)
    steps = torch.arange(LENGTH) * (2 * rises[:, None] - 1)
    return (start + steps) % TOKENS, rises


def pretrained(steps: int) -> Body:
    """The body after `steps` of another task; a file would do."""
    random = torch.Generator().manual_seed(0)
    body, head = Body(), nn.Linear(WIDTH, TOKENS)
    optimizer = torch.optim.Adam([*body.parameters(), *head.parameters()], lr=3e-3)
    for _ in range(steps):
        rows, _ = sequences(64, random)
        optimizer.zero_grad()
        functional.cross_entropy(head(body(rows)), rows[:, LENGTH // 2]).backward()
        optimizer.step()
    return body


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200, help="of tuning (default 200)")
    parser.add_argument("--pretraining", type=int, default=100, help="steps (default 100)")
    args = parser.parse_args()

    rabit.init()  # +
    torch.manual_seed(0)
    body = pretrained(args.pretraining) if rabit.rank() == 0 else Body()
    model = nn.Sequential(body, nn.Linear(WIDTH, 2))
    body.embedding.requires_grad_(False)
    optimizer = torch.optim.AdamW(
        [
            {"params": [each for each in body.parameters() if each.requires_grad], "lr": 3e-4},
            {"params": model[1].parameters(), "lr": 3e-3},
        ]
    )
    tuned = [(name, each) for name, each in model.named_parameters() if each.requires_grad]
    optimizer = rabit.DistributedOptimizer(optimizer, tuned)  # +
    rabit.broadcast_parameters(model.state_dict(), root_rank=0)  # +

    random = torch.Generator().manual_seed(1 + rabit.rank())  # other sequences on every rank
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 20))
    for step in range(args.steps):
        rows, rises = sequences(32, random)
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(rows), rises)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # of the mean over all ranks
        optimizer.step()
        schedule.step()
        if (step + 1) % 50 == 0:
            mean = rabit.allreduce(loss.detach(), name="loss").item()
            if rabit.rank() == 0:
                print(f"step {step + 1}/{args.steps}  loss {mean:.4f}", flush=True)

    rows, rises = sequences(500, torch.Generator().manual_seed(100 + rabit.rank()))
    with torch.no_grad():
        correct = (model(rows).argmax(dim=1) == rises).float().mean()
    accuracy = rabit.allreduce(correct, name="accuracy").item()
    if rabit.rank() == 0:
        print(f"accuracy {100 * accuracy:.1f} % over {500 * rabit.size()} new sequences")
    rabit.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
