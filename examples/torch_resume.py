"""Continues after a crash: a checkpoint of each epoch, and a job that starts where the last one ended.

    rabitrun -np 2 python examples/torch_resume.py --crash-after 3     # rank 1 dies
    rabitrun -np 2 python examples/torch_resume.py                     # continues with epoch 4
    rabitrun -np 2 --max-restarts 1 python examples/torch_resume.py --crash-after 3    # by itself

The parameters are those of a job that never crashed, bit for bit.  SIGTERM to any rank, or to rabitrun, ends
the epoch on all of them and leaves with status 75: start it again to continue.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import signal
import sys

import torch

import rabit_torch as rabit
from rabit.checkpoint import RESUMABLE


def fingerprint(model: torch.nn.Module) -> str:
    """Of every bit of the parameters."""
    found = hashlib.sha256()
    for parameter in model.parameters():
        found.update(parameter.detach().numpy().tobytes())
    return found.hexdigest()[:16]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=6, help="in all (default 6)")
    parser.add_argument("--checkpoint", default="", help="the folder (default: of rabitrun, or checkpoints)")
    parser.add_argument("--crash-after", type=int, default=0, help="this epoch rank 1 dies, once")
    args = parser.parse_args()

    rabit.init()  # +
    torch.manual_seed(rabit.rank())  # data of its own; it continues where the saved job was
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    optimizer = rabit.DistributedOptimizer(optimizer, model.named_parameters())  # +
    rabit.broadcast_parameters(model.state_dict(), root_rank=0)  # +
    folder = args.checkpoint or os.environ.get("RABIT_CHECKPOINT", "checkpoints")
    checkpoint = rabit.Checkpoint(folder, model=model, optimizer=optimizer, scheduler=scheduler)
    found = checkpoint.restore()
    done = 0 if found is None else found.step
    if done and rabit.rank() == 0:
        print(f"going on after epoch {done}")

    for epoch in range(done + 1, args.epochs + 1):
        for _ in range(20):
            x = torch.randn(32, 8)
            optimizer.zero_grad()
            loss = (model(x) - x.sin().sum(dim=1, keepdim=True)).square().mean()
            loss.backward()
            optimizer.step()
        scheduler.step()
        mean = rabit.allreduce(loss.detach(), name="loss").item()
        checkpoint.save(step=epoch)
        if rabit.rank() == 0:
            print(f"epoch {epoch}/{args.epochs}  loss {mean:.6f}", flush=True)
        if epoch == args.crash_after and done == 0:
            checkpoint.wait()
            if rabit.rank() == 1:
                os.kill(os.getpid(), signal.SIGKILL)
        if rabit.should_stop() and epoch < args.epochs:
            checkpoint.close()
            return RESUMABLE
    checkpoint.close()
    if rabit.rank() == 0:
        print(f"parameters {fingerprint(model)}")
    rabit.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
