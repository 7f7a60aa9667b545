"""Training steps per second: rabit's optimizer, DDP on rabit, DDP on gloo, and one process alone.

    python -m torch.distributed.run --standalone --nproc-per-node 2 tests/bench/torch_training.py

All ways run in one process, in turns, so that a busy machine slows them alike.  Reported are medians
of the turns, the ratios to DDP on gloo as medians of the ratios of single turns, and one process
with and without init() (on rank 0, while the others wait).
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import rabit_torch
import rabit_torch.distributed


def wide() -> nn.Module:
    return nn.Sequential(
        nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
    )


def deep() -> nn.Module:
    layers: list[nn.Module] = []
    for _ in range(41):
        layers += [nn.Linear(128, 128), nn.ReLU()]
    return nn.Sequential(*layers)


def convolutional() -> nn.Module:
    layers: list[nn.Module] = []
    widths = [3, 32, 32, 64, 64, 128, 128]
    for index, (before, after) in enumerate(itertools.pairwise(widths)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
        layers += [nn.MaxPool2d(2)] if index % 2 else []
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(128 * 16, 10))


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "MLP 784-1024-1024-10, batch 64": (wide, (64, 784)),
    "deep MLP 41 x 128, batch 32": (deep, (32, 128)),
    "CNN 6 conv + BN, batch 16": (convolutional, (16, 3, 32, 32)),
}


class Way:
    """One way to train: a model, an optimizer, and the steps per second of every turn."""

    def __init__(
        self,
        make: Callable[[], nn.Module],
        wrap: Callable[[nn.Module], tuple[nn.Module, torch.optim.Optimizer]],
    ) -> None:
        torch.manual_seed(0)
        self.model, self.optimizer = wrap(make())
        self.speeds: list[float] = []

    def run(self, x: torch.Tensor, steps: int) -> None:
        for _ in range(steps):
            self.optimizer.zero_grad()
            self.model(x).square().mean().backward()
            self.optimizer.step()

    def turn(self, x: torch.Tensor, steps: int) -> None:
        begin = time.perf_counter()
        self.run(x, steps)
        self.speeds.append(steps / (time.perf_counter() - begin))


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)


def ddp(group: dist.ProcessGroup) -> Callable[[nn.Module], tuple[nn.Module, torch.optim.Optimizer]]:
    def wrap(model: nn.Module) -> tuple[nn.Module, torch.optim.Optimizer]:
        wrapped = DistributedDataParallel(model, process_group=group)
        return wrapped, sgd(wrapped)

    return wrap


def optimizer(model: nn.Module) -> tuple[nn.Module, torch.optim.Optimizer]:
    return model, rabit_torch.DistributedOptimizer(sgd(model), model.named_parameters())


def flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def compare(name: str, turns: int, seconds: float, gloo: dist.ProcessGroup) -> None:
    make, shape = MODELS[name]
    x = torch.randn(shape, generator=torch.Generator().manual_seed(dist.get_rank()))
    ways = {
        "DDP on gloo": Way(make, ddp(gloo)),
        "DDP on rabit": Way(make, ddp(dist.group.WORLD)),
        "DistributedOptimizer": Way(make, optimizer),
    }
    for way in ways.values():
        way.run(x, 5)
    parameters = [flat(way.model) for way in ways.values()]
    for found in parameters[1:]:
        torch.testing.assert_close(found, parameters[0], rtol=1e-4, atol=1e-6)
    begin = time.perf_counter()
    ways["DDP on gloo"].run(x, 5)
    steps = torch.tensor(max(5, int(seconds * 5 / (time.perf_counter() - begin))))
    dist.broadcast(steps, 0, group=gloo)
    for turn in range(turns):
        order = list(ways.values())
        for way in order[turn % 3 :] + order[: turn % 3]:
            dist.barrier(group=gloo)
            way.turn(x, int(steps))
    if dist.get_rank() == 0:
        print(name)
        base = ways["DDP on gloo"].speeds
        for label, way in ways.items():
            ratio = statistics.median(a / b for a, b in zip(way.speeds, base, strict=True))
            print(
                f"  {label:<22} {statistics.median(way.speeds):8.1f} steps/s {ratio:6.2f} x gloo",
                flush=True,
            )


def alone(turns: int, seconds: float) -> None:
    """One process, with and without an engine of one rank."""
    for name, (make, shape) in MODELS.items():
        way, x = Way(make, lambda model: (model, sgd(model))), torch.randn(shape)
        way.run(x, 5)
        begin = time.perf_counter()
        way.run(x, 5)
        steps = max(5, int(seconds * 5 / (time.perf_counter() - begin)))
        speeds: dict[bool, list[float]] = {False: [], True: []}
        idle = busy = 0.0  # CPU seconds of the engine's threads and of this one
        for turn in range(2 * turns):
            with_engine = turn % 4 in (1, 2)
            if with_engine:
                rabit_torch.init()
            all_before, own_before = time.process_time(), time.thread_time()
            way.turn(x, steps)
            own = time.thread_time() - own_before
            speeds[with_engine].append(way.speeds[-1])
            if with_engine:
                busy += own
                idle += time.process_time() - all_before - own
                rabit_torch.shutdown()
        without, with_ = (statistics.median(speeds[key]) for key in (False, True))
        print(f"{name}: alone {without:.1f} steps/s, after init() {with_:.1f}", end=" ")
        print(
            f"= {with_ / without:.3f} x; the idle engine took {100 * idle / busy:.2f} % of the CPU"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--turns", type=int, default=9, help="turns of each way (default 9)")
    parser.add_argument("--seconds", type=float, default=0.5, help="length of a turn (default 0.5)")
    parser.add_argument("--alone", action="store_true", help="one process with and without init()")
    parser.add_argument("--only", default="", help="models whose name contains this text")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.alone:
        alone(arguments.turns, arguments.seconds)
        return
    rabit_torch.init()
    dist.init_process_group("rabit")
    gloo = dist.new_group(backend="gloo")
    for name in MODELS:
        if arguments.only in name:
            compare(name, arguments.turns, arguments.seconds, gloo)
    dist.barrier(group=gloo)
    dist.destroy_process_group()
    rabit_torch.shutdown()


if __name__ == "__main__":
    main()
