"""Elastic jobs by methods that keep something on each rank, compared with jobs that had their ranks from the start.

    python tests/faults/elastic_strategies.py [--runs 20] [--seed 0]

Each run trains a small model on four ranks by PowerSGD, DiLoCo or top-k, and loses one or two of them at random
steps. Every rank that is left must have the parameters, bit for bit, that a chain of jobs without losses leaves, each
of which goes on with the ranks, residuals and momentum of the one before.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

RANKS, STEPS = 4, 12
METHODS = ("powersgd:rank=2,small=0", "diloco:every=3", "topk:ratio=0.1,small=0")
SCRIPT = """
import json, os, pathlib, signal, sys
import torch
import rabit_torch as rabit
from rabit_torch import elastic

folder, begin, steps = pathlib.Path(sys.argv[1]), json.loads(sys.argv[2]), int(sys.argv[3])
victims = [tuple(each) for each in json.loads(sys.argv[4])]
torch.set_num_threads(1)
torch.manual_seed(0)
me = int(os.environ["RABIT_RANK"])
rabit.init()
model = torch.nn.Sequential(torch.nn.Linear(20, 60), torch.nn.ReLU(), torch.nn.Linear(60, 1))
optimizer = rabit.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.05), named_parameters=model.named_parameters(), strategy=sys.argv[5]
)
inputs = torch.randn(257, 20)
targets = inputs.sum(1, keepdim=True)
sampler = elastic.ElasticSampler(range(len(inputs)), seed=3)
state = elastic.TorchState(model, optimizer, step=0, sampler=sampler, sizes=[])
parts = {"model": model, "optimizer": optimizer, "sampler": sampler}
if begin:
    # Each rank goes on as one of those that had the state.
    at, ranks, before = begin
    kept = torch.load(folder / f"at.{at}.{ranks[me]}", weights_only=False)
    for name, each in parts.items():
        each.load_state_dict(kept[name])
    optimizer.load_strategy_state_dict(kept["method"])
    optimizer._rabit_resize_strategy(before, is_new=False)
    state.step = at

def train(state):
    while state.step < steps:
        sampler.reset()
        rows = sampler.indices[:8]
        optimizer.zero_grad()
        loss = ((model(inputs[rows]) - targets[rows]) ** 2).mean()
        if (state.step, me) in victims:
            os.kill(os.getpid(), signal.SIGKILL)
        loss.backward()
        optimizer.step()
        sampler.record_batch(0, len(rows))
        state.step += 1
        state.sizes.append(rabit.size())
        state.commit()

(train if begin else elastic.run(train))(state)
contents = {name: each.state_dict() for name, each in parts.items()}
contents["method"] = optimizer.strategy_state_dict()
torch.save(contents, folder / f"at.{steps}.{rabit.rank()}")
found = [each.detach().numpy().tobytes().hex() for each in model.parameters()]
everywhere = rabit.allgather_object(found)
if rabit.rank() == 0:
    (folder / "result.json").write_text(json.dumps([everywhere, state.sizes]))
"""


def train_by(
    folder: Path,
    strategy: str,
    ranks: int,
    steps: int,
    *,
    least: int = 0,
    spares: int = 0,
    begin: Sequence[Any] = (),
    victims: Sequence[tuple[int, int]] = (),
) -> Any:
    """The parameters of each rank after so many steps, and the ranks of each step.

    least: of an elastic job.  begin: the step to go on from, as which ranks of the job before, and how many it had.
    victims: (step, process) of each loss.
    """
    script = folder / "train.py"
    script.write_text(SCRIPT)
    bounds = ["--min-np", str(least), "--spares", str(spares)] if least else []
    command = [
        *(sys.executable, "-m", "rabit.launch", "-np", str(ranks), *bounds),
        *(sys.executable, str(script), str(folder), json.dumps(begin), str(steps)),
        *(json.dumps(victims), strategy),
    ]
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "RABIT_DETERMINISTIC": "1"}
    done = subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, timeout=150, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((folder / "result.json").read_text())


def play(strategy: str, victims: Sequence[tuple[int, int]]) -> None:
    """Loses the victims, in the order of their steps.  Raises AssertionError."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found, sizes = train_by(folder, strategy, RANKS, STEPS, least=1, victims=victims)
        wanted, begin, ranks = [], [], RANKS
        members = list(range(RANKS))
        for step, victim in victims:
            train_by(folder, strategy, ranks, step, begin=begin)
            wanted += [ranks] * (step - len(wanted))
            begin = [step, [place for place, each in enumerate(members) if each != victim], ranks]
            members.remove(victim)
            ranks -= 1
        reference, _ = train_by(folder, strategy, ranks, STEPS, begin=begin)
        wanted += [ranks] * (STEPS - len(wanted))
        assert sizes == wanted, (sizes, wanted)
        assert found == reference, f"{strategy}, {victims}: other parameters than without losses"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0, help="of the first run; the others count on")
    given = parser.parse_args()
    failed = []
    for seed in range(given.seed, given.seed + given.runs):
        dice = random.Random(seed)
        # A loss is noticed in a step that exchanges: of DiLoCo's every third one.
        steps = sorted(dice.sample((2, 5, 8, 11), dice.randint(1, 2)))
        victims = list(zip(steps, dice.sample(range(RANKS), len(steps)), strict=True))
        strategy = dice.choice(METHODS)
        try:
            play(strategy, victims)
        except AssertionError as error:
            failed.append(seed)
            print(f"--seed {seed} --runs 1 has failed: {strategy}, {victims}: {error}", flush=True)
    good = given.runs - len(failed)
    print(f"{good} of {given.runs} jobs have the bits of jobs without losses; failed seeds: {failed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
