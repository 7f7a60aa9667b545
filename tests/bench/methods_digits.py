"""Accuracy of gradient methods on handwritten digits."""

from __future__ import annotations

import math
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness import Option, case, on_ranks, words
from methods_bytes import bytes_of_engine
from methods_rows import Rows

from rabit.strategies import make
from rabit.training.strategy import has_momentum

sys.path.append(str(Path(__file__).resolve().parents[1]))

from support.rows import ROWS, text_of

RANKS, STEPS, BATCH = 4, 660, 16
WEIGHTS, BIASES = 64 * 256 + 256 * 10, 256 + 10
SGD, ADAM = 98.07, 97.85  # of the simulation, plain


def added(bits: float, biases: float = 32) -> float:
    """Bytes that a rank sends in a step, of sums and what goes in two phases; biases go as plain means."""
    return 2 * (RANKS - 1) / RANKS * (WEIGHTS * bits + BIASES * biases) / 8


def gathered(bits: float) -> float:
    """The same, of what everybody gets from everybody."""
    return (RANKS - 1) * WEIGHTS * bits / 8 + added(0)


def factors(rank: int) -> float:
    return added(32 * rank * (64 + 256 + 256 + 10) / WEIGHTS)


def moves(every: int) -> float:
    return added(32) / every


SCALE = 32 / 512  # bits an entry, of a scale for each block of 512


@dataclass(frozen=True)
class Way:
    """How a method is trained.  accuracy: expected, in per cent.  bytes: by its formula, if it has one here."""

    accuracy: float
    lr: float = 0.1
    momentum: float = 0.9
    bytes: float | None = None


TABLE: dict[str, Way] = {
    "mean": Way(98.07, bytes=added(32)),
    "qsgd:bits=8,small=1024": Way(98.07, bytes=added(8 + SCALE)),
    "qsgd:bits=3,small=1024": Way(97.85, bytes=added(3 + SCALE)),
    "nuqsgd:bits=3,small=1024": Way(98.07, bytes=added(3 + SCALE)),
    "alq:bits=3,every=100,small=1024": Way(98.00, bytes=added(3 + SCALE)),
    "amq:bits=3,every=100,small=1024": Way(97.78, bytes=added(3 + SCALE)),
    "bytegrad:block=512,small=1024": Way(98.07, bytes=added(8 + 2 * SCALE)),
    "fp8:small=1024": Way(98.07, bytes=added(8 + SCALE)),
    "wangni:ratio=0.05,small=1024": Way(97.70, bytes=gathered(64 * 0.05)),
    "wangni:ratio=0.2,small=1024": Way(97.93),
    "topk:ratio=0.01,small=1024": Way(97.63, bytes=gathered(64 * 0.01)),
    "topk:ratio=0.001,small=1024": Way(96.67, bytes=gathered(64 * 0.001)),
    "dgc:ratio=0.01,small=1024": Way(97.63, momentum=0.0),
    "dgc:ratio=0.001,small=1024": Way(97.56, momentum=0.0),
    "sign:block=512,small=1024": Way(97.33, 0.05, bytes=added(1 + SCALE)),
    "ef21-sgdm:ratio=0.01,small=1024": Way(97.48, 1.0, 0.0, bytes=gathered(64 * 0.01)),
    "powersgd:rank=1,small=1024": Way(98.00, bytes=factors(1)),
    "powersgd:rank=2,small=1024": Way(98.07, bytes=factors(2)),
    "powersgd:rank=4,small=1024": Way(98.07, bytes=factors(4)),
    "accordion:low=4,high=1,interval=110,small=1024": Way(98.07),
    "local:every=8": Way(97.85, bytes=moves(8)),
    "local:every=32": Way(97.93, bytes=moves(32)),
    "local:every=16,start=330": Way(98.00, bytes=(added(32) + moves(16)) / 2),
    "slowmo:every=32,beta=0.5": Way(97.78, bytes=moves(32)),
    "diloco:every=32": Way(96.59, bytes=moves(32)),
    "mean:codec=bf16": Way(SGD, bytes=added(16, 16)),
    "randomk:ratio=0.1,small=1024": Way(97.33, 0.03, bytes=added(3.2)),
    "ef21:ratio=0.05,small=1024": Way(SGD, bytes=gathered(64 * 0.05)),
    "onebit:block=64,small=1024": Way(SGD),
    "terngrad:block=256,small=1024": Way(SGD, bytes=gathered(2 + 32 / 256)),
    "natural:small=1024": Way(SGD, bytes=added(9)),
    "rowsparse:small=1024": Way(SGD),
    "hierarchical:bits=4,island=2,small=1024": Way(SGD),
    "adasum": Way(SGD, 0.05, bytes=added(32)),
    "demo:count=16,chunk=64": Way(96.37, 0.003, 0.0),
    "sparseloco:every=8,ratio=0.1": Way(SGD),
    "streaming-diloco:every=16,delay=2": Way(96.59, bytes=moves(16)),
    "streaming-diloco:every=16,delay=2,bits=4": Way(96.59),
    "decentralized": Way(SGD, bytes=added(32)),
    "decentralized:peers=shift-one": Way(SGD, bytes=4.0 * (WEIGHTS + BIASES)),
    "gossip": Way(SGD, bytes=8.0 * (WEIGHTS + BIASES)),
    "lowprecision": Way(SGD),
    "async": Way(SGD),
    "anybatch": Way(SGD, bytes=added(32)),
    "dabmd:graph=ring": Way(SGD, 0.8, 0.0, bytes=8.0 * (WEIGHTS + BIASES)),
    "onebit-adam:warmup=130,block=512,small=1024": Way(ADAM, 0.002, 0.0),
    "qadam:warmup=130,block=512,small=1024": Way(ADAM, 0.002, 0.0),
    "zero-one-adam:start=330,grow=100,every=4,block=512,small=1024": Way(ADAM, 0.002, 0.0),
    "onebit-adam:warmup=660": Way(ADAM, 0.002, 0.0, bytes=added(32)),
    "onebit-lamb:warmup=660": Way(ADAM, 0.02, 0.0, bytes=added(32)),
    "onebit-lamb:warmup=130,block=512,small=1024": Way(ADAM, 0.01, 0.0),
}
# A method that stands in no line here is trained as its row of the suites says.
for _name in sorted(set(ROWS) - {text.partition(":")[0] for text in TABLE}):
    _text = text_of(_name, ROWS[_name].learns[0])
    _has_own = has_momentum(make(_text))
    TABLE[_text] = Way(SGD, ROWS[_name].learns[1] / 5, 0.0 if _has_own else 0.9)


def rate(step: int, highest: float) -> float:
    if step < 40:
        return highest * (step + 1) / 40
    return highest * max(1e-3, 0.5 * (1 + math.cos(math.pi * (step - 40) / (STEPS - 40))))


def train(spec: str, seed: int, data: Any) -> tuple[float, float]:
    """Accuracy, and bytes that a rank sends in a step."""
    import torch

    import rabit_torch as rabit

    images, labels, test_images, test_labels = data
    way = TABLE[spec]
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
    for layer in (model[0], model[2]):
        torch.nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        torch.nn.init.zeros_(layer.bias)
    plain = torch.optim.SGD(model.parameters(), lr=way.lr, momentum=way.momentum)
    optimizer = rabit.DistributedOptimizer(plain, model.named_parameters(), strategy=spec)
    order = torch.Generator().manual_seed(1000 + seed)
    batches: list[torch.Tensor] = []
    counts = hasattr(optimizer.strategy, "samples")
    before = bytes_of_engine(rabit)
    for step in range(STEPS):
        if not batches:
            batches = list(torch.randperm(len(images), generator=order).split(BATCH * RANKS))[:-1]
        mine = batches.pop()[rabit.rank() * BATCH : (rabit.rank() + 1) * BATCH]
        for group in optimizer.param_groups:
            group["lr"] = rate(step, way.lr)
        optimizer.zero_grad()
        if counts:
            optimizer.strategy.samples = len(mine)
        found = torch.nn.functional.cross_entropy(
            model(images[mine]), labels[mine], reduction="sum" if counts else "mean"
        )
        found.backward()
        optimizer.step()
    sent = torch.tensor((bytes_of_engine(rabit) - before) / STEPS)
    sent = rabit.allreduce(sent, name="sent")
    optimizer.strategy_state_dict()  # Brings in what is under way, on all ranks.
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(rabit.allreduce(parameter.detach(), name="end"))
        right = (model(test_images).argmax(1) == test_labels).float().mean()
    return float(right) * 100, float(sent)


def verdict(spec: str, row: dict[str, Any]) -> str:
    """What falls short, or nothing."""
    way, found = TABLE[spec], row["accuracy"]
    mean = sum(found) / len(found)
    spread = math.sqrt(sum((each - mean) ** 2 for each in found) / len(found))
    bar = way.accuracy - max(0.6, 3 * min(spread, 0.5))
    misses = [f"accuracy {mean:.2f}, not {bar:.2f}"] if mean < bar else []
    if way.bytes is not None and abs(row["bytes"] / way.bytes - 1) > 0.05:
        misses.append(f"{row['bytes']:.0f} bytes a step, not {way.bytes:.0f}")
    return "; ".join(misses)


def dataset() -> Any:
    import torch
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    digits = load_digits()
    parts = train_test_split(digits.data / 16, digits.target, test_size=0.25, stratify=digits.target, random_state=0)
    images, test_images = (torch.tensor(each, dtype=torch.float32) for each in parts[:2])
    labels, test_labels = (torch.tensor(each) for each in parts[2:])
    return images, labels, test_images, test_labels


def chosen(options: Any) -> dict[str, dict[str, Any]]:
    """Settings by method, of those that are asked for."""
    wanted = options.methods
    return {
        spec: {**asdict(way), "seeds": options.seeds}
        for spec, way in TABLE.items()
        if not wanted or spec.partition(":")[0] in wanted
    }


def methods_digits_rank(options: Any) -> None:
    import torch

    import rabit_torch as rabit

    torch.set_num_threads(1)
    rabit.init()
    data, settings = dataset(), chosen(options)
    rows = Rows(Path(options.save) if options.save and rabit.rank() == 0 else None)
    specs = rabit.broadcast_object(rows.missing(settings), root_rank=0, name="methods")
    begin = time.monotonic()
    for done, spec in enumerate(specs, 1):
        busy = time.process_time()
        found = [train(spec, seed, data) for seed in range(options.seeds)]
        used = torch.tensor(time.process_time() - busy)
        used = rabit.allreduce(used, op=rabit.Sum, name="used")
        if rabit.rank() == 0:
            accuracy, sent = zip(*found, strict=True)
            row = {"accuracy": accuracy, "bytes": sum(sent) / len(sent), "processor_seconds": float(used)}
            rows.add(spec, settings[spec], row)
            left = (time.monotonic() - begin) / done * (len(specs) - done)
            print(f"[{done}/{len(specs)}, {left:3.0f} s left] {line(spec, row)}", flush=True)
    if rabit.rank() == 0:
        conclude(settings, rows)
    rabit.shutdown()


def line(spec: str, row: dict[str, Any]) -> str:
    mean = sum(row["accuracy"]) / len(row["accuracy"])
    spread = math.sqrt(sum((each - mean) ** 2 for each in row["accuracy"]) / len(row["accuracy"]))
    of_formula = row["bytes"] / (TABLE[spec].bytes or math.nan)
    return (
        f"{spec:62} {mean:6.2f} ± {spread:4.2f} of {TABLE[spec].accuracy:5.2f}  "
        f"{row['bytes']:8.0f} bytes ({of_formula:4.2f} of the formula)  {row['processor_seconds']:5.1f} s "
        f"of processors  {verdict(spec, row) or 'ok'}"
    )


def conclude(settings: dict[str, dict[str, Any]], rows: Rows) -> None:
    short = [f"  {line(each, rows.rows[each])}" for each in settings if verdict(each, rows.rows[each])]
    used = sum(rows.rows[each]["processor_seconds"] for each in settings)
    print(f"{len(settings) - len(short)} of {len(settings)} hold, {used:.0f} s of processors")
    print("\n".join(short), flush=True)


@case(
    seeds=3, methods=words("", "some of them"), save=Option("", help="a JSON file; what it has is not measured again")
)
def methods_digits(o: Any) -> None:
    """Accuracy of gradient methods on handwritten digits, beside what their formulas reach in simulation.

    4 ranks that are processes, DistributedOptimizer, MLP 64-256-10 in float32, 16 images a rank, 660 steps,
    learning rate with 40 steps of warm-up and then cosine, momentum 0.9 unless a method has its own.
    Two things are asked of a method.  Its accuracy is not more than 0.6 points below that of the same formulas
    in float64 NumPy with simulated ranks, or three standard deviations, of 0.5 points at most; where no simulation
    was made, of plain SGD or Adam.  And a rank sends the bytes of its formula, within 5 per cent.
    With --save, methods that the file has are not measured again.  Needs scikit-learn, for its digits.
    """
    on_ranks(methods_digits_rank, o, RANKS, flags=["--transport", "tcp", "--allreduce-algorithm", "ring"])
