"""Goes on after a crash: a checkpoint of each epoch, and a job that starts where the last one ended.

    rabitrun -np 2 python examples/torch_resume.py --crash-after 3     # rank 1 dies
    rabitrun -np 2 python examples/torch_resume.py                     # goes on with epoch 4

The numbers are those of a job that never crashed.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

import torch

import rabit_torch as rabit


def save(path: Path, state: dict[str, object]) -> None:
    """The file is there whole or not at all, whenever the process dies."""
    beside = path.with_suffix(".tmp")
    torch.save(state, beside)
    beside.replace(path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=6, help="in all (default 6)")
    parser.add_argument("--checkpoint", type=Path, default=Path("state.pt"), help="the file")
    parser.add_argument("--crash-after", type=int, default=0, help="this epoch rank 1 dies")
    args = parser.parse_args()

    rabit.init()  # +
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    done = 0
    if rabit.rank() == 0 and args.checkpoint.exists():
        state = torch.load(args.checkpoint, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        done = state["done"]
    done = rabit.broadcast_object(done, root_rank=0)
    optimizer = rabit.DistributedOptimizer(optimizer, model.named_parameters())  # +
    rabit.broadcast_parameters(model.state_dict(), root_rank=0)  # +
    rabit.broadcast_optimizer_state(optimizer, root_rank=0)
    if done and rabit.rank() == 0:
        print(f"going on after epoch {done}")

    for epoch in range(done + 1, args.epochs + 1):
        # What is drawn depends on epoch and rank alone, so a resumed job draws the same.
        random = torch.Generator().manual_seed(1000 * epoch + rabit.rank())
        for _ in range(20):
            x = torch.randn(32, 8, generator=random)
            optimizer.zero_grad()
            loss = (model(x) - x.sin().sum(dim=1, keepdim=True)).square().mean()
            loss.backward()
            optimizer.step()
        mean = rabit.allreduce(loss.detach(), name="loss").item()
        if rabit.rank() == 0:
            print(f"epoch {epoch}/{args.epochs}  loss {mean:.6f}", flush=True)
            state = {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "done": epoch,
            }
            save(args.checkpoint, state)
        rabit.barrier()  # nobody goes on before the file is there
        if epoch == args.crash_after and rabit.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
    rabit.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
