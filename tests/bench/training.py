"""Training steps on one host: beside DDP on gloo, the modes of overlap, sparse rows and waves."""

from __future__ import annotations

import itertools
import os
import resource
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from harness import case, median, on_ranks, ratio, table, turns, words

sys.path.append(str(Path(__file__).resolve().parents[2] / "examples"))

# --- what is trained ----------------------------------------------------------------------------------------------


class Subject(NamedTuple):
    """make: the model; rows: its input, of a generator; optimizer: of the parameters that are trained."""

    title: str
    make: Callable[[], Any]
    rows: Callable[[Any], Any]
    optimizer: Callable[[Any], Any]


def sgd(parameters: Any) -> Any:
    import torch

    return torch.optim.SGD(parameters, lr=1e-3, momentum=0.9)


def adam(parameters: Any) -> Any:
    import torch

    return torch.optim.AdamW(parameters, lr=1e-3)


def randn(*shape: int) -> Callable[[Any], Any]:
    import torch

    return lambda random: torch.randn(shape, generator=random)


def chain(widths: list[int], tail: bool = True) -> Any:
    """Linear layers with ReLU between them, and behind the last one if there is a tail."""
    from torch import nn

    layers = [layer for pair in itertools.pairwise(widths) for layer in (nn.Linear(*pair), nn.ReLU())]
    return nn.Sequential(*(layers if tail else layers[:-1]))


def convolutional() -> Any:
    from torch import nn

    layers: list[Any] = []
    for index, (before, after) in enumerate(itertools.pairwise([3, 32, 32, 64, 64, 128, 128])):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
        layers += [nn.MaxPool2d(2)] if index % 2 else []
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(128 * 16, 10))


def digits() -> Subject:
    from torch_digits import DigitNet

    return Subject("torch_digits: 3 convolutions, batch 32", DigitNet, randn(32, 1, 8, 8), adam)


def resnet() -> Subject:
    from torch_resnet import resnet

    return Subject("torch_resnet: 20 layers, batch 50", lambda: resnet(3, 16), randn(50, 3, 32, 32), sgd)


def letters() -> Subject:
    import torch
    from torch_char_lm import ByteTransformer

    rows = lambda random: torch.randint(256, (16, 64), generator=random)  # noqa: E731
    return Subject("torch_char_lm: transformer, 16 x 64 bytes", lambda: ByteTransformer(96, 2, 64), rows, adam)


def finetune() -> Subject:
    from torch import nn
    from torch_finetune import WIDTH, Body, sequences

    def make() -> Any:
        body = Body()
        body.embedding.requires_grad_(False)
        return nn.Sequential(body, nn.Linear(WIDTH, 2))

    return Subject("torch_finetune: transformer, batch 32", make, lambda random: sequences(32, random)[0], adam)


def mlp() -> Subject:
    return Subject(
        "MLP 784-1024-1024-10, batch 64", lambda: chain([784, 1024, 1024, 10], tail=False), randn(64, 784), sgd
    )


def deep() -> Subject:
    return Subject("deep MLP 41 x 128, batch 32", lambda: chain([128] * 42), randn(32, 128), sgd)


def cnn() -> Subject:
    return Subject("CNN 6 conv + BN, batch 16", convolutional, randn(16, 3, 32, 32), sgd)


SUBJECTS = {each.__name__: each for each in (mlp, deep, cnn, digits, resnet, letters, finetune)}
OWN = ("mlp", "deep", "cnn")


def step_of(optimizer: Any, model: Any, x: Any) -> Callable[[], None]:
    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return step


# --- beside DDP ---------------------------------------------------------------------------------------------------


@case(ranks=2, turns=9, seconds=0.5, alone=False, only="")
def torch_training(o: Any) -> None:
    """Training steps per second: rabit's optimizer, DDP on rabit and DDP on gloo, in one process and in turns.

    Reported are medians of the turns, and the ratios to DDP on gloo as medians of the ratios of single turns.
    --alone: one process with and without init().  --only: models whose name contains this text.
    """
    if o.alone:
        rows = [
            [name, f"{without:.1f}", f"{with_:.1f}", with_ / without, f"{100 * share:.2f} %"]
            for name, without, with_, share in on_ranks(alone_rank, o, 1, by="alone")[0]
        ]
        table(["one process, steps/s", "alone", "after init()", "ratio", "CPU of the idle engine"], rows)
        return
    for name, speeds in on_ranks(torch_training_rank, o, o.ranks, by="torchrun")[0].items():
        base = speeds["DDP on gloo"]
        table(
            [name, "steps/s", "x gloo"],
            [[way, f"{median(each):.1f}", ratio(each, base)] for way, each in speeds.items()],
        )


def timed(step: Callable[[], None], steps: int) -> float:
    """Steps a second."""
    began = time.perf_counter()
    for _ in range(steps):
        step()
    return steps / (time.perf_counter() - began)


def torch_training_rank(o: Any) -> dict[str, dict[str, list[float]]]:
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    import rabit_torch
    import rabit_torch.distributed

    torch.set_num_threads(1)
    rabit_torch.init()
    dist.init_process_group("rabit")
    gloo, found = dist.new_group(backend="gloo"), {}
    for subject in (SUBJECTS[name]() for name in OWN):
        if o.only not in subject.title:
            continue
        models, steps = {}, {}
        x = subject.rows(torch.Generator().manual_seed(dist.get_rank()))
        for way, group in (("DDP on gloo", gloo), ("DDP on rabit", dist.group.WORLD), ("DistributedOptimizer", None)):
            torch.manual_seed(0)
            model = subject.make()
            if group is not None:
                model = DistributedDataParallel(model, process_group=group)
            optimizer = subject.optimizer(model.parameters())
            if group is None:
                optimizer = rabit_torch.DistributedOptimizer(optimizer, model.named_parameters())
            models[way], steps[way] = model, step_of(optimizer, model, x)
            timed(steps[way], 5)
        flat = [torch.cat([p.detach().reshape(-1) for p in model.parameters()]) for model in models.values()]
        for other in flat[1:]:
            torch.testing.assert_close(other, flat[0], rtol=1e-4, atol=1e-6)
        count = torch.tensor(max(5, int(o.seconds * timed(steps["DDP on gloo"], 5))))
        dist.broadcast(count, 0, group=gloo)

        def turn(step: Any, count: int = int(count)) -> float:
            dist.barrier(group=gloo)
            return timed(step, count)

        found[subject.title] = turns({way: lambda s=step: turn(s) for way, step in steps.items()}, o.turns, warm=0)
    dist.barrier(group=gloo)
    dist.destroy_process_group()
    rabit_torch.shutdown()
    return found


def alone_rank(o: Any) -> list[tuple[str, float, float, float]]:
    import torch

    import rabit_torch

    torch.set_num_threads(1)
    found = []
    for subject in (SUBJECTS[name]() for name in OWN):
        model = subject.make()
        step = step_of(subject.optimizer(model.parameters()), model, subject.rows(None))
        timed(step, 5)
        steps = max(5, int(o.seconds * timed(step, 5)))
        speeds: dict[bool, list[float]] = {False: [], True: []}
        idle = busy = 0.0  # CPU seconds of the engine's threads and of this one
        for number in range(2 * o.turns):
            with_engine = number % 4 in (1, 2)
            if with_engine:
                rabit_torch.init()
            before, own = time.process_time(), time.thread_time()
            speeds[with_engine].append(timed(step, steps))
            own = time.thread_time() - own
            if with_engine:
                busy, idle = busy + own, idle + time.process_time() - before - own
                rabit_torch.shutdown()
        found.append((subject.title, median(speeds[False]), median(speeds[True]), idle / busy))
    return found


LABELS = {"gloo": "DDP on gloo", "ddp": "DDP on rabit", "optimizer": "DistributedOptimizer", "alone": "alone"}
STARTED_BY = {"gloo": "torchrun", "ddp": "torchrun", "optimizer": "rabitrun", "alone": "alone"}


@case(ranks=2, turns=5, steps=150, models=words("mlp,deep,cnn"), ways=words("gloo,ddp,optimizer,alone"))
def busy_cores(o: Any) -> None:
    """Training on busy cores: rabit's optimizer and DDP on rabit beside DDP on gloo, in separate processes.

    Every way runs in processes of its own, as users start them: torchrun for DDP, rabitrun for DistributedOptimizer.
    The ranks share as many cores as there are ranks, with one busy compute thread each, so whatever waits or copies
    takes a core from somebody's computation. The ways take turns. Reported are medians over the turns: milliseconds
    of a step, the ratio to DDP on gloo in the same turn (more is better), processor time of a step on rank 0, of
    which threads, and how often a step gave its core away (voluntary) or lost it (involuntary). "alone" is one rank
    without any library. --models: of mlp, deep, cnn, digits, resnet, letters and finetune; the last four are those of
    the examples.
    """
    print(f"{o.ranks} ranks on {o.ranks} cores, {o.turns} turns; load average {os.getloadavg()[0]:.1f} at the start")
    ways = [way for way in LABELS if way in o.ways or way == "gloo"]

    def job(way: str, model: str) -> dict[str, Any]:
        task = SimpleNamespace(**{**vars(o), "way": way, "model": model})
        ranks = 1 if way == "alone" else o.ranks
        return on_ranks(busy_rank, task, ranks, by=STARTED_BY[way], quiet=True, timeout=600)[0]

    for model in o.models:
        found = turns({way: lambda way=way, model=model: job(way, model) for way in ways}, o.turns, warm=0)
        rows = []
        for way, each in found.items():
            middle = {key: median(one[key] for one in each) for key in ("ms", "cpu_ms", "voluntary", "involuntary")}
            base = [one["ms"] for one in found["gloo"]]
            names = sorted({thread for one in each for thread in one["threads"]})
            shares = [f"{name} {median(one['threads'].get(name, 0.0) for one in each):.2f}" for name in names]
            speed = f"{ratio(base, [one['ms'] for one in each]):.2f}"
            rows.append(
                [
                    LABELS[way],
                    f"{middle['ms']:.2f}",
                    speed,
                    *(f"{middle[key]:.2f}" for key in list(middle)[1:]),
                    ", ".join(shares),
                ]
            )
        table([SUBJECTS[model]().title, "ms/step", "x gloo", "cpu ms", "vol", "invol", "threads, ms"], rows)


def threads_ns() -> dict[str, int]:
    """Processor time of this process by the names of its threads."""
    found: dict[str, int] = defaultdict(int)
    for task in Path("/proc/self/task").iterdir():
        try:
            name = (task / "comm").read_text().strip().rstrip("0123456789-")
            found[name] += int((task / "schedstat").read_text().split()[0])
        except FileNotFoundError:  # The thread has ended.
            continue
    return found


def busy_rank(o: Any) -> dict[str, Any]:
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: o.ranks])
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    torch.manual_seed(0)
    subject, rank = SUBJECTS[o.model](), 0
    model: Any = subject.make()
    trained = [(name, each) for name, each in model.named_parameters() if each.requires_grad]
    optimizer: Any = subject.optimizer(each for _, each in trained)
    if o.way in ("gloo", "ddp"):
        if o.way == "ddp":
            import rabit_torch.distributed
        dist.init_process_group("gloo" if o.way == "gloo" else "rabit")
        rank, model = dist.get_rank(), DistributedDataParallel(model)
    elif o.way == "optimizer":
        import rabit_torch

        rabit_torch.init()
        rank = rabit_torch.rank()
        optimizer = rabit_torch.DistributedOptimizer(optimizer, trained)
    step = step_of(optimizer, model, subject.rows(torch.Generator().manual_seed(rank)))
    for _ in range(10):
        step()
    before, threads = resource.getrusage(resource.RUSAGE_SELF), threads_ns()
    blocks = [1 / timed(step, 5) for _ in range(max(1, o.steps // 5))]
    after, used, steps = resource.getrusage(resource.RUSAGE_SELF), threads_ns(), 5 * len(blocks)
    found = {
        "ms": median(blocks) * 1e3,
        "cpu_ms": (sum(used.values()) - sum(threads.values())) / steps / 1e6,
        "voluntary": (after.ru_nvcsw - before.ru_nvcsw) / steps,
        "involuntary": (after.ru_nivcsw - before.ru_nivcsw) / steps,
        "threads": {
            name: (ns - threads.get(name, 0)) / steps / 1e6
            for name, ns in used.items()
            if ns - threads.get(name, 0) > steps * 10_000
        },
    }
    if o.way in ("gloo", "ddp"):
        dist.destroy_process_group()
    elif o.way == "optimizer":
        rabit_torch.shutdown()
    # The last reference to a gloo group is the model's: its destructor joins threads while it holds the GIL, and such a
    # thread may be about to take the GIL.  Such a worker never ends.
    o.ends_at_once = True
    return found


# --- rabit alone --------------------------------------------------------------------------------------------------


@case(ranks=2, turns=6, steps=15)
def overlap_cost(o: Any) -> None:
    """What the modes of overlap cost where there is nothing to hide: real training on one host.

    A deep narrow and a shallow wide model, two optimizers; the modes take turns.  Medians of a step on rank 0.
    """
    rows = [
        [name, f"{wall * 1e3:.2f} ms", f"{busy * 1e3:.2f} ms"]
        for name, wall, busy in on_ranks(overlap_rank, o, o.ranks)[0]
    ]
    table(["", "a step", "processor"], rows)


def overlap_rank(o: Any) -> list[tuple[str, float, float]]:
    import torch

    import rabit_torch as rabit

    torch.set_num_threads(1)
    rabit.init()
    models = {
        "deep": (lambda: chain([128] * 41 + [10], tail=False), (32, 128)),
        "wide": (lambda: chain([256, 1024, 1024, 256], tail=False), (64, 256)),
    }
    found = []
    for name, (make, shape) in models.items():
        for optimizer in (sgd, adam):
            runs = {}
            for mode in ("backward", "next-forward", "reduce-scatter"):
                torch.manual_seed(0)
                model = make()
                plain = optimizer(model.parameters())
                wrapped = rabit.DistributedOptimizer(plain, model.named_parameters(), overlap=mode)
                runs[mode] = step_of(wrapped, model, torch.randn(shape)), wrapped

            def turn(step: Any, wrapped: Any) -> tuple[float, float]:
                rabit.barrier()
                wall, busy = time.perf_counter(), time.process_time()
                for _ in range(o.steps):
                    step()
                wrapped.flush()
                return (time.perf_counter() - wall) / o.steps, (time.process_time() - busy) / o.steps

            for mode, times in turns({mode: lambda run=run: turn(*run) for mode, run in runs.items()}, o.turns).items():
                wall, busy = zip(*times, strict=True)
                found.append((f"{name} {optimizer.__name__} {mode}", median(wall), median(busy)))
    rabit.shutdown()
    return found


@case(ranks=2, rows=50_000, width=128, words=2048, steps=9)
def row_sparse(o: Any) -> None:
    """An embedding whose gradient travels dense, as touched rows, or as a sparse tensor of torch.

    The ways take turns, step by step, in the same processes. Words are drawn by Zipf's law. Bytes are those of rank
    0.
    """
    found = on_ranks(row_sparse_rank, o, o.ranks)[0]
    rows = [
        [way, f"{each[-1][1] / 1e6:.2f} MB", f"{1e3 * median(s for s, _ in each):.1f} ms"]
        for way, each in found.items()
    ]
    table([f"{o.rows} x {o.width}, {o.words} words", "bytes sent", "step"], rows)


def row_sparse_rank(o: Any) -> dict[str, list[tuple[float, int]]]:
    import torch

    import rabit_torch as rabit

    rabit.init()
    torch.set_num_threads(1)
    random, frequency = (torch.Generator().manual_seed(rabit.rank()), 1.0 / torch.arange(1, o.rows + 1))
    drawn = [torch.multinomial(frequency, o.words, True, generator=random) for _ in range(o.steps + 2)]

    def sent_bytes() -> int:
        return int(rabit.statistics()["backend_details"]["builtin"]["transport"]["bytes_sent"])

    def way(is_sparse: bool, rows: bool) -> Callable[[], tuple[float, int]]:
        torch.manual_seed(0)
        model, steps = torch.nn.Embedding(o.rows, o.width, sparse=is_sparse), iter(drawn)
        plain, chosen = torch.optim.SGD(model.parameters(), lr=0.1), ["weight"] if rows else False
        optimizer = rabit.DistributedOptimizer(plain, model.named_parameters(), row_sparse=chosen)

        def step() -> tuple[float, int]:
            rabit.barrier()
            before, began = sent_bytes(), time.perf_counter()
            model(next(steps)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            return time.perf_counter() - began, sent_bytes() - before

        return step

    ways = {"dense": way(False, False), "row_sparse": way(False, True), "Embedding(sparse=True)": way(True, False)}
    found = turns(ways, o.steps, warm=2)
    rabit.shutdown()
    return found


@case(turns=3, steps=40)
def waves(o: Any) -> None:
    """Seconds of a step of two ranks: each alone, side by side, and in waves.

    Each rank has a thread of its own, so that side by side costs neither of them anything where two cores are free:
    the worst case for waves. The ways run in turns; beside them stands the load of the machine.
    """
    jobs = {"alone": (1, 1), "side by side": (2, 1), "waves": (2, 2)}  # ranks, RABIT_WAVES
    found = turns(
        {
            way: lambda ranks=ranks, count=count: (
                on_ranks(waves_rank, o, ranks, flags=["--waves", str(count)], quiet=True)[0],
                os.getloadavg()[0],
            )
            for way, (ranks, count) in jobs.items()
        },
        o.turns,
        warm=0,
    )
    rows = []
    for way, each in found.items():
        times, loads = zip(*each, strict=True)
        shown = " ".join(f"{1e3 * s:.0f}" for s in times), " ".join(f"{load:.1f}" for load in loads)
        rows.append([way, f"{1e3 * median(times):.1f} ms", *shown])
    table(["", "a step", "turns", "load"], rows)


def waves_rank(o: Any) -> float:
    import torch

    import rabit_torch as rabit

    torch.set_num_threads(1)
    rabit.init()
    layers = [layer for _ in range(24) for layer in (torch.nn.Linear(64, 64), torch.nn.Tanh())]
    model = torch.nn.Sequential(*layers)
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = rabit.DistributedOptimizer(plain, model.named_parameters())
    cycles, found = rabit.Waves(model), []
    batch = torch.randn(2048, 64, generator=torch.Generator().manual_seed(rabit.rank()))
    for _ in range(o.steps):
        began = time.monotonic()
        with cycles.cycle():
            model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(time.monotonic() - began)
    rabit.shutdown()
    return median(found[o.steps // 5 :])
