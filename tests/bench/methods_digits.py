"""Accuracy of gradient methods on handwritten digits, beside what their formulas reach in simulation.

    python tests/bench/methods_digits.py [--seeds 3] [--methods qsgd,topk] [--save build/digits.json]

4 ranks that are processes, DistributedOptimizer, MLP 64-256-10 in float32, 16 images a rank, 660 steps,
learning rate with 40 steps of warm-up and then cosine, momentum 0.9 unless a method has its own.
`expected` is the accuracy in per cent of the same formulas in float64 NumPy with simulated ranks, or
what plain SGD or Adam reach where no simulation was made.  A method is "ok" that is not more than 0.6
points below it, or three standard deviations of 0.5 points at most.  Needs scikit-learn, for its digits.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path

SGD, ADAM = 98.07, 97.85  # of the simulation, plain

# Text: (expected accuracy, learning rate, momentum).  Biases alone go as plain means.
TABLE: dict[str, tuple[float, float, float]] = {
    "mean": (98.07, 0.1, 0.9),
    "qsgd:bits=8,small=1024": (98.07, 0.1, 0.9),
    "qsgd:bits=3,small=1024": (97.85, 0.1, 0.9),
    "nuqsgd:bits=3,small=1024": (98.07, 0.1, 0.9),
    "alq:bits=3,every=100,small=1024": (98.00, 0.1, 0.9),
    "amq:bits=3,every=100,small=1024": (97.78, 0.1, 0.9),
    "bytegrad:block=512,small=1024": (98.07, 0.1, 0.9),
    "fp8:small=1024": (98.07, 0.1, 0.9),
    "wangni:ratio=0.05,small=1024": (97.70, 0.1, 0.9),
    "wangni:ratio=0.2,small=1024": (97.93, 0.1, 0.9),
    "topk:ratio=0.01,small=1024": (97.63, 0.1, 0.9),
    "topk:ratio=0.001,small=1024": (96.67, 0.1, 0.9),
    "dgc:ratio=0.01,small=1024": (97.63, 0.1, 0.0),
    "dgc:ratio=0.001,small=1024": (97.56, 0.1, 0.0),
    "sign:block=512,small=1024": (97.33, 0.05, 0.9),
    "ef21-sgdm:ratio=0.01,small=1024": (97.48, 1.0, 0.0),
    "powersgd:rank=1,small=1024": (98.00, 0.1, 0.9),
    "powersgd:rank=2,small=1024": (98.07, 0.1, 0.9),
    "powersgd:rank=4,small=1024": (98.07, 0.1, 0.9),
    "accordion:low=4,high=1,interval=110,small=1024": (98.07, 0.1, 0.9),
    "local:every=8": (97.85, 0.1, 0.9),
    "local:every=32": (97.93, 0.1, 0.9),
    "local:every=16,start=330": (98.00, 0.1, 0.9),
    "slowmo:every=32,beta=0.5": (97.78, 0.1, 0.9),
    "diloco:every=32": (96.59, 0.1, 0.9),
    "mean:codec=bf16": (SGD, 0.1, 0.9),
    "randomk:ratio=0.1,small=1024": (SGD, 0.03, 0.9),
    "ef21:ratio=0.05,small=1024": (SGD, 0.1, 0.9),
    "onebit:block=64,small=1024": (SGD, 0.1, 0.9),
    "terngrad:block=256,small=1024": (SGD, 0.1, 0.9),
    "natural:small=1024": (SGD, 0.1, 0.9),
    "rowsparse:small=1024": (SGD, 0.1, 0.9),
    "hierarchical:bits=4,island=2,small=1024": (SGD, 0.1, 0.9),
    "adasum": (SGD, 0.05, 0.9),
    "demo:count=16,chunk=64": (96.37, 0.003, 0.0),
    "sparseloco:every=8,ratio=0.1": (SGD, 0.1, 0.9),
    "streaming-diloco:every=16,delay=2": (96.59, 0.1, 0.9),
    "streaming-diloco:every=16,delay=2,bits=4": (96.59, 0.1, 0.9),
    "decentralized": (SGD, 0.1, 0.9),
    "decentralized:peers=shift-one": (SGD, 0.1, 0.9),
    "gossip": (SGD, 0.1, 0.9),
    "lowprecision": (SGD, 0.1, 0.9),
    "async": (SGD, 0.1, 0.9),
    "anybatch": (SGD, 0.1, 0.9),
    "dabmd:graph=ring": (SGD, 0.8, 0.0),
    "onebit-adam:warmup=130,block=512,small=1024": (ADAM, 0.002, 0.0),
    "qadam:warmup=130,block=512,small=1024": (ADAM, 0.002, 0.0),
    "zero-one-adam:start=330,grow=100,every=4,block=512,small=1024": (ADAM, 0.002, 0.0),
    "onebit-adam:warmup=660": (ADAM, 0.002, 0.0),
    "onebit-lamb:warmup=660": (ADAM, 0.02, 0.0),
    "onebit-lamb:warmup=130,block=512,small=1024": (ADAM, 0.02, 0.0),
}
RANKS, STEPS, BATCH = 4, 660, 16


def rate(step: int, highest: float) -> float:
    if step < 40:
        return highest * (step + 1) / 40
    return highest * max(1e-3, 0.5 * (1 + math.cos(math.pi * (step - 40) / (STEPS - 40))))


def train(spec: str, seed: int, data) -> float:
    import torch

    import rabit_torch as rabit

    images, labels, test_images, test_labels = data
    _, highest, momentum = TABLE[spec]
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
    for layer in (model[0], model[2]):
        torch.nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        torch.nn.init.zeros_(layer.bias)
    plain = torch.optim.SGD(model.parameters(), lr=highest, momentum=momentum)
    optimizer = rabit.DistributedOptimizer(plain, model.named_parameters(), strategy=spec)
    order = torch.Generator().manual_seed(1000 + seed)
    batches: list[torch.Tensor] = []
    counts = hasattr(optimizer.strategy, "samples")
    for step in range(STEPS):
        if not batches:
            batches = list(torch.randperm(len(images), generator=order).split(BATCH * RANKS))[:-1]
        mine = batches.pop()[rabit.rank() * BATCH : (rabit.rank() + 1) * BATCH]
        for group in optimizer.param_groups:
            group["lr"] = rate(step, highest)
        optimizer.zero_grad()
        if counts:
            optimizer.strategy.samples = len(mine)
        found = torch.nn.functional.cross_entropy(
            model(images[mine]), labels[mine], reduction="sum" if counts else "mean"
        )
        found.backward()
        optimizer.step()
    optimizer.strategy_state_dict()  # Brings in what is under way, on all ranks.
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(rabit.allreduce(parameter.detach(), name="end"))
        return float((model(test_images).argmax(1) == test_labels).float().mean()) * 100


def rank_main(arguments: argparse.Namespace) -> None:
    import torch
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    import rabit_torch as rabit

    torch.set_num_threads(1)
    rabit.init()
    digits = load_digits()
    parts = train_test_split(
        digits.data / 16, digits.target, test_size=0.25, stratify=digits.target, random_state=0
    )
    images, test_images = (torch.tensor(each, dtype=torch.float32) for each in parts[:2])
    labels, test_labels = (torch.tensor(each) for each in parts[2:])
    rows = []
    wanted = arguments.methods.split(",") if arguments.methods else []
    specs = [each for each in TABLE if not wanted or each.partition(":")[0] in wanted]
    begin = time.monotonic()
    for done, spec in enumerate(specs, 1):
        expected = TABLE[spec][0]
        found = [
            train(spec, seed, (images, labels, test_images, test_labels))
            for seed in range(arguments.seeds)
        ]
        mean = sum(found) / len(found)
        spread = math.sqrt(sum((each - mean) ** 2 for each in found) / len(found))
        bar = expected - max(0.6, 3 * min(spread, 0.5))
        if rabit.rank() == 0:
            says = "ok" if mean >= bar else "BELOW"
            rows.append({"method": spec, "accuracy": found, "expected": expected})
            if arguments.save:  # After each, as the whole table takes its time.
                arguments.save.parent.mkdir(parents=True, exist_ok=True)
                arguments.save.write_text(json.dumps(rows, indent=1) + "\n")
            left = (time.monotonic() - begin) / done * (len(specs) - done)
            print(
                f"[{done}/{len(specs)}, {left:3.0f} s left] {spec:62} "
                f"{mean:6.2f} ± {spread:4.2f}  expected {expected:6.2f}  {says}",
                flush=True,
            )
    rabit.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--methods", default="")
    parser.add_argument("--save", type=Path, help="a JSON file for methods_picture.py")
    arguments = parser.parse_args()
    if "RABIT_RANK" in os.environ:
        rank_main(arguments)
        return
    command = [sys.executable, "-m", "rabit.launch", "-np", str(RANKS), sys.executable, __file__]
    sys.exit(subprocess.run([*command, *sys.argv[1:]], check=False).returncode)


if __name__ == "__main__":
    main()
