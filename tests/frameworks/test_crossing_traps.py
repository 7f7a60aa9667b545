"""What goes wrong when updates leave step(): 32 traps, each with the right behaviour.

One job for each mode and number of ranks runs scripts/crossing_traps.py; each trap is reported by itself.
The numbers are those of this table.

| trap | what                            | trap | what                                  |
|------|---------------------------------|------|---------------------------------------|
| 1    | clip_grad_norm_                 | 17   | the optimizer's own code runs         |
| 2    | clip_grad_value_                | 18   | no magic first step                   |
| 3    | learning-rate schedulers        | 19   | closures                              |
| 4    | zero_grad                       | 20   | add_param_group                       |
| 5    | model.zero_grad, p.grad = None  | 21   | state_dict, deepcopy, pickle in flight |
| 6    | reading p.grad                  | 22   | the end of training                   |
| 7    | accumulation, no_sync           | 23   | autograd's versions                   |
| 8    | loss scaling                    | 24   | activation checkpointing              |
| 9    | extra forward passes, GANs      | 25   | sparse gradients                      |
| 10   | evaluation right after step()   | 26   | TorchScript and other unseen readers  |
| 11   | parameters beside children      | 27   | changes of mode                       |
| 12   | weights read past their module  | 28   | determinism                           |
| 13   | tied weights                    | 29   | errors reach the trainer (below)      |
| 14   | unused parameters               | 30   | gradients of the collectives          |
| 15   | ranks use them in other orders  | 31   | no GPU needed                         |
| 16   | every optimizer                 | 32   | priorities (and native/schedule)      |
"""

from __future__ import annotations

import ast
import functools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from support.job import Job
from support.rank_server import RankServer

SCRIPT = Path(__file__).parent / "scripts" / "crossing_traps.py"
TRAPS = [
    each.name
    for each in ast.parse(SCRIPT.read_text()).body
    if isinstance(each, ast.FunctionDef) and each.name.startswith("trap_")
] + ["trap_22_shutdown_finishes_updates"]


@functools.cache
def outcomes(server: RankServer, ranks: int, mode: str) -> list[dict[str, str]] | str:
    """What every rank reported; a text if the job failed."""
    with tempfile.TemporaryDirectory() as folder:
        launch = [sys.executable, "-m", "rabit.launch", "-np", str(ranks), *server.command]
        done = subprocess.run(
            [*launch, str(SCRIPT), folder],
            env={
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "CROSSING": mode,
                "RABIT_DETERMINISTIC": "1",
                "RABIT_STALL_ABORT": "40",
            },
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        if done.returncode:
            return f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return [json.loads(Path(folder, f"rank.{r}.json").read_text()) for r in range(ranks)]


@pytest.mark.parametrize("trap", TRAPS)
@pytest.mark.parametrize(
    ("mode", "ranks"), [("next-forward", 2), ("next-forward", 3), ("reduce-scatter", 2)]
)
def test_trap(rank_server, mode, ranks, trap):
    found = outcomes(rank_server, ranks, mode)
    assert isinstance(found, list), found
    for rank, outcome in enumerate(found):
        assert outcome.get(trap) == "ok", f"rank {rank}: {outcome.get(trap)}"


def test_every_trap_of_the_table_has_a_test():
    numbers = {int(name.split("_")[1]) for name in TRAPS} | {29}

    assert numbers == set(range(1, 33))


DYING = """
import os, sys, time, torch
from pathlib import Path
from torch import nn
import rabit_torch as rabit

folder = Path(sys.argv[1])
torch.manual_seed(0)
rabit.init()
model = nn.Sequential(nn.Linear(8, 300), nn.Linear(300, 300), nn.Linear(300, 2))
optimizer = rabit.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), overlap="next-forward"
)
x = torch.randn(4, 8)


def die(grad):
    deadline = time.monotonic() + 50
    while not (folder / "stepped").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    os._exit(9)


for step in range(3):
    optimizer.zero_grad()
    if step == 2 and rabit.rank() == 1:
        model[1].weight.register_hook(die)
    model(x).square().mean().backward()
    optimizer.step()
pending = len(optimizer.pending_updates)
(folder / "stepped").touch()
words = []
try:
    model(x)
except rabit.RabitError as error:
    words.append(type(error).__name__)
    words.append(str(error))
copies = {name: value.isfinite().all().item() for name, value in model.state_dict().items()}
words.append(f"{sum(copies.values())} parameters, {pending} and then {len(optimizer.pending_updates)} pending")
try:
    model(x).square().mean().backward()
    optimizer.step()
    model(x)
    words.append("no error")
except rabit.RabitError as error:
    words.append(type(error).__name__)
(folder / "words").write_text("|".join(words))
os._exit(3)
"""


def test_trap_29_a_lost_rank_is_told_where_the_trainer_waits(tmp_path):
    job = Job(tmp_path, 2, DYING)
    try:
        codes = job.wait(60)
    finally:
        job.close()

    assert codes == [3, 9], job.output(0)
    first, text, rest, again = (tmp_path / "words").read_text().split("|")
    assert (first, again) == ("PeerLost", "PeerLost")
    assert "rank 1" in text
    assert rest == "6 parameters, 6 and then 0 pending"
