"""Compressed gradients that servers add up, through DistributedOptimizer."""

from __future__ import annotations

import os
import subprocess
import sys

LEARN = """
import os, torch, rabit, rabit_torch

def learn(strategy):
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(300, 400), torch.nn.ReLU(), torch.nn.Linear(400, 10))
    optimizer = rabit_torch.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.05), named_parameters=model.named_parameters(),
        strategy=strategy)
    random = torch.Generator().manual_seed(7 + rabit.rank())
    for step in range(4):
        points, labels = torch.randn(16, 300, generator=random), torch.randint(10, (16,), generator=random)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(points), labels).backward()
        optimizer.step()
    return torch.cat([each.detach().reshape(-1) for each in model.parameters()]).numpy().tobytes()

def learn_by(backend):
    os.environ["RABIT_BACKEND"] = backend
    rabit.init()
    weights = [learn(strategy) for strategy in ("bytegrad", "qsgd")]
    sent = {(each["kind"], each["backend"]): each["bytes"] for each in rabit.statistics()["routes"]}
    rabit.shutdown()
    return weights, sent

served, through_servers = learn_by("ps")
alone, among_ranks = learn_by("builtin,ps")
assert served == alone, "other weights with servers"
# Small tensors travel as they are; with servers, what is gathered is what ranks compare of their methods.
codes = among_ranks[("allgather", "builtin")] - through_servers[("allgather", "builtin")]
codes += among_ranks[("allreduce", "builtin")]
ratio = through_servers[("allreduce", "ps")] / codes
assert 1 < ratio < 1.05, f"{through_servers} against {among_ranks}"
print("equal", flush=True)
"""


def test_servers_give_the_weights_that_ranks_give_each_other(rank_server, tmp_path):
    script = tmp_path / "learn.py"
    script.write_text(LEARN)
    job = subprocess.run(
        [sys.executable, "-m", "rabit.launch", "-np", "2", "-s", "1", *rank_server.command, str(script)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert job.returncode == 0, job.stderr
    assert job.stdout.count("equal") == 2
