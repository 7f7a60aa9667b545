"""Elastic jobs by methods that keep something on each rank, compared with jobs that had their ranks from the start.

    python tests/faults/elastic_strategies.py [--runs 20] [--seed 0]

Each run trains a small model on four ranks by one of the methods that elastic jobs take, and loses one or two of them
at random steps. Every rank that is left must have the parameters, bit for bit, that a chain of jobs without losses
leaves, each of which continues with the ranks, residuals and momentum of the one before.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support import seeds
from support.rows import text_of

from rabit.strategies import catalog

RANKS, STEPS = 4, 12
# Methods by their names, all but those that elastic jobs refuse.
METHODS = {name: text_of(name) for name, row in catalog.METHODS.items() if "resize" in row.survives}
SCRIPT = """
import json, os, pathlib, signal, sys
import torch
import rabit_torch as rabit
from rabit.framework import Change
from rabit_torch import elastic

folder, begin, steps = pathlib.Path(sys.argv[1]), json.loads(sys.argv[2]), int(sys.argv[3])
victims = {(step, process): method for step, process, method in json.loads(sys.argv[4])}
methods, replicas = json.loads(sys.argv[5]), int(sys.argv[6])
torch.set_num_threads(1)
me = int(os.environ["RABIT_RANK"])
rabit.init()
inputs = torch.randn(257, 20, generator=torch.Generator().manual_seed(1))
targets = inputs.sum(1, keepdim=True)
sampler = elastic.ElasticSampler(range(len(inputs)), seed=3)
models, optimizers = {}, {}
for each in methods:
    torch.manual_seed(0)
    models[each] = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.ReLU(), torch.nn.Linear(30, 1))
    named = [(f"{each}.{name}", p) for name, p in models[each].named_parameters()]
    optimizers[each] = rabit.DistributedOptimizer(
        torch.optim.SGD(models[each].parameters(), lr=0.01), named_parameters=named, strategy=each
    )
parts = {"sampler": sampler}
parts |= {f"model {each}": model for each, model in models.items()}
parts |= {f"optimizer {each}": optimizer for each, optimizer in optimizers.items()}
state = elastic.TorchState(step=0, sizes=[], replicas=replicas, **parts)
if begin:
    # Each rank continues as one of those that had the state.
    at, ranks, before = begin
    kept = torch.load(folder / f"at.{at}.{ranks[me]}", weights_only=False)
    for name, each in parts.items():
        each.load_state_dict(kept[name])
    for name, optimizer in optimizers.items():
        optimizer._rabit_load_strategy(kept[f"method {name}"], Change(before, rabit.size()))
    state.step = at

def train(state):
    while state.step < steps:
        sampler.reset()
        rows = sampler.indices[:8]
        for name, optimizer in optimizers.items():
            optimizer.zero_grad()
            loss = ((models[name](inputs[rows]) - targets[rows]) ** 2).mean()
            if victims.get((state.step, me)) == name:
                os.kill(os.getpid(), signal.SIGKILL)
            loss.backward()
            optimizer.step()
        sampler.record_batch(0, len(rows))
        state.step += 1
        state.sizes.append(rabit.size())
        for each in optimizers.values():
            each.strategy_state_dict()  # Brings in what is under way, as commits of elastic jobs do.
        state.commit()

(train if begin else elastic.run(train))(state)
contents = {name: each.state_dict() for name, each in parts.items()}
contents |= {f"method {name}": each.strategy_state_dict() for name, each in optimizers.items()}
torch.save(contents, folder / f"at.{steps}.{rabit.rank()}")
found = {
    name: [each.detach().numpy().tobytes().hex() for each in model.parameters()] for name, model in models.items()
}
everywhere = rabit.allgather_object(found)
if rabit.rank() == 0:
    (folder / "result.json").write_text(json.dumps([everywhere, state.sizes]))
"""


def train_by(
    folder: Path,
    methods: Sequence[str],
    ranks: int,
    steps: int,
    *,
    least: int = 0,
    spares: int = 0,
    begin: Sequence[Any] = (),
    victims: Sequence[tuple[int, int, str]] = (),
    hosts: str = "localhost:16",
    replicas: int = 0,
    python: Sequence[str] = (sys.executable,),
) -> Any:
    """The parameters of each method on each rank after so many steps, and the ranks of each step.

    least: of an elastic job.  begin: the step to continue from, as which ranks of the job before, and how many it had.
    victims: (step, process, method) of each loss: the process ends before it exchanges by this method.
    replicas: of the state, for which the job needs several hosts.  python: what runs the script.
    """
    script = folder / "train.py"
    script.write_text(SCRIPT)
    bounds = ["--min-np", str(least), "--spares", str(spares)] if least else []
    command = [
        *(sys.executable, "-m", "rabit.launch", "-np", str(ranks), "-H", hosts, *bounds),
        *(*python, str(script), str(folder), json.dumps(begin), str(steps)),
        *(json.dumps(victims), json.dumps(methods), str(replicas)),
    ]
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "RABIT_DETERMINISTIC": "1"}
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((folder / "result.json").read_text())


def play(
    methods: Sequence[str],
    victims: Sequence[tuple[int, int, str]],
    python: Sequence[str] = (sys.executable,),
) -> tuple[Any, Any]:
    """What jobs that lose the victims, in the order of their steps, and jobs without losses come to.

    Of each rank the parameters of each method.  Raises AssertionError.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found, sizes = train_by(folder, methods, RANKS, STEPS, least=1, victims=victims, python=python)
        wanted, begin, ranks = [], [], RANKS
        members = list(range(RANKS))
        for step, victim, _ in victims:
            train_by(folder, methods, ranks, step, begin=begin, python=python)
            wanted += [ranks] * (step - len(wanted))
            begin = [step, [place for place, each in enumerate(members) if each != victim], ranks]
            members.remove(victim)
            ranks -= 1
        reference, _ = train_by(folder, methods, ranks, STEPS, begin=begin, python=python)
        wanted += [ranks] * (STEPS - len(wanted))
        assert sizes == wanted, (sizes, wanted)
        return found, reference


def losses_of(seed: int) -> tuple[str, list[tuple[int, int, str]]]:
    """A method, and the step, process and method of each loss."""
    dice = random.Random(seed)
    # A loss is noticed in a step that exchanges: of DiLoCo's every second one.
    steps = sorted(dice.sample((1, 5, 7, 11), dice.randint(1, 2)))
    method = METHODS[dice.choice(sorted(METHODS))]
    return method, [(step, each, method) for step, each in zip(steps, dice.sample(range(RANKS), 4), strict=False)]


def main() -> int:
    given = seeds.options(__doc__, runs=20).parse_args()

    def one(seed: int) -> None:
        method, victims = losses_of(seed)
        found, reference = play([method], victims)
        assert found == reference, "other parameters than without losses"

    return seeds.play(given, one, jobs="jobs have the bits of jobs without losses", about=losses_of)


if __name__ == "__main__":
    sys.exit(main())
