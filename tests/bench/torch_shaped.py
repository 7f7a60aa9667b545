"""Real training on shaped links.

Every rank is a process in a network namespace of its own, and all ways to train take turns in it.
Computation is real, so ranks compete for the processors of this machine with each other and with the
communication: what the links hide is less than tests/bench schedule shows.  T* comes from the
measured link and from compute times that hooks measured on all ranks at once, without communication.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from harness import case, interval, lab_or_stop, on_ranks, rate, words
from harness import links as shaped_links
from schedule import ratio_of_medians
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import rabit
import rabit_torch
from rabit.tuning.step_time import Layer, barrier, crossing

WAYS = ("ddp-gloo", "backward", "next-forward", "reduce-scatter")


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.before_attention, self.before_dense = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.dense = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.before_attention(x)).view(batch, length, 3, 4, width // 4)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.dense(self.before_dense(x))


class Transformer(nn.Module):
    def __init__(self, width: int = 256, blocks: int = 4) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(blocks)))
        self.head = nn.Linear(width, 256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.embedding(x)))


def cnn() -> nn.Module:
    """VGG's outline: most computation in front, most parameters behind."""
    layers: list[nn.Module] = []
    for before, after in pairwise([3, 32, 64, 128, 256]):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
        layers += [nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(1024, 1536), nn.ReLU(), nn.Linear(1536, 10))


def batch_for(model: str, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(rabit.rank())
    if model == "cnn":
        images = torch.randn(size, 3, 32, 32, generator=generator)
        return images, torch.randint(10, (size,), generator=generator)
    text = torch.randint(256, (size, 65), generator=generator)
    return text[:, :-1], text[:, 1:]


class Way:
    """One way to train one model."""

    def __init__(self, name: str, model: str, batch: int) -> None:
        torch.manual_seed(0)
        self.x, self.y = batch_for(model, batch)
        self.net: nn.Module = cnn() if model == "cnn" else Transformer()
        self.optimizer: Any = torch.optim.SGD(self.net.parameters(), lr=0.01, momentum=0.9)
        self.forward: Callable[[torch.Tensor], torch.Tensor] = self.net
        if name == "ddp-gloo":
            self.forward = DistributedDataParallel(self.net)
        elif name != "alone":
            self.optimizer = rabit_torch.DistributedOptimizer(
                self.optimizer, self.net.named_parameters(prefix=f"{model}.{name}"), overlap=name
            )

    def step(self) -> None:
        self.optimizer.zero_grad()
        logits = self.forward(self.x)
        nn.functional.cross_entropy(logits.flatten(0, -2), self.y.flatten()).backward()
        self.optimizer.step()

    def steps(self, count: int) -> list[float]:
        moments = []
        for _ in range(count):
            moments.append(time.perf_counter())
            self.step()
        moments.append(time.perf_counter())
        return moments

    def flush(self) -> None:
        if hasattr(self.optimizer, "flush"):
            self.optimizer.flush()


def profile(way: Way, steps: int) -> list[Layer]:
    """Times of every module with parameters, in the order of the forward: medians of `steps`."""
    modules = [each for each in way.net.modules() if list(each.parameters(recurse=False))]
    starts: dict[nn.Module, list[float]] = {each: [] for each in modules}
    readies: dict[nn.Module, list[float]] = {each: [] for each in modules}
    ends: list[float] = []
    for each in modules:
        each.register_forward_pre_hook(lambda m, _: starts[m].append(time.perf_counter()))
        first = next(each.parameters(recurse=False))
        first.register_post_accumulate_grad_hook(lambda _, m=each: readies[m].append(time.perf_counter()))
    way.net.register_forward_hook(lambda *_: ends.append(time.perf_counter()))
    finished = way.steps(steps)[1:]
    order = sorted(modules, key=lambda m: starts[m][0])
    layers = []
    for number, each in enumerate(order):
        following = starts[order[number + 1]] if number + 1 < len(order) else ends
        before = readies[order[number + 1]] if number + 1 < len(order) else ends
        forward = [b - a for a, b in zip(starts[each], following, strict=True)]
        if number == 0:  # the optimizer, and what comes before the first layer
            forward = [f + (end - ready) for f, end, ready in zip(forward, finished, readies[each], strict=True)]
        backward = [b - a for a, b in zip(before, readies[each], strict=True)]
        size = sum(p.numel() * p.element_size() for p in each.parameters(recurse=False))
        layers.append(Layer(statistics.median(forward), max(0.0, statistics.median(backward)), size))
    return layers


def seconds_per_byte(total: int) -> float:
    """Of an allreduce as large as the model: median of the slowest rank."""
    buffer, times = np.ones(total // 4, np.float32), []
    for _ in range(4):
        rabit.barrier()
        begin = time.perf_counter()
        rabit.allreduce_(buffer, name="link")
        times.append(float(rabit.allreduce(np.array(time.perf_counter() - begin), op=rabit.Max)))
    return statistics.median(times[1:]) / total


def torch_shaped_rank(o: Any) -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    rabit_torch.init()
    dist.init_process_group("gloo", init_method=f"file://{o.folder}/gloo", rank=rabit.rank(), world_size=rabit.size())
    found = []
    for model in o.models:
        ways = {name: Way(name, model, o.cnn_batch if model == "cnn" else o.lm_batch) for name in ["alone", *o.ways]}
        moments: dict[str, list[list[float]]] = {name: [] for name in ways}
        for turn in range(o.turns + 1):
            for name, way in ways.items():
                rabit.barrier()
                began = way.steps(o.steps + 1 if turn else 3)
                way.flush()
                if turn:
                    moments[name].append(began[1:])
        rabit.barrier()
        layers = profile(ways["alone"], 5)
        weights = {
            name: float(sum(p.detach().double().abs().sum() for p in way.net.parameters()))
            for name, way in ways.items()
        }
        beta = seconds_per_byte(sum(each.bytes for each in layers))
        rows = [[each.forward, each.backward, each.bytes] for each in layers]
        found.append({"moments": moments, "layers": rows, "beta": beta, "weights": weights})
    rabit.barrier()
    dist.destroy_process_group()
    rabit_torch.shutdown()
    return found


def show(o: Any, reports: list[Any]) -> None:
    for number, model in enumerate(o.models):
        results = [each[number] for each in reports]
        layers = [Layer(*row) for row in results[0]["layers"]]
        costs = [results[0]["beta"] * each.bytes for each in layers]
        times = {
            way: shaped_links.step_times([each["moments"][way] for each in results]) for way in results[0]["moments"]
        }
        ideal, waiting = crossing(layers, costs), barrier(layers, costs)
        computing = sum(each.forward + each.backward for each in layers)
        print(
            f"\n{model}: {sum(e.bytes for e in layers) / 1e6:.1f} MB, C {computing:.3f} s, "
            f"M {sum(costs):.3f} s, rho {sum(costs) / computing:.2f}, T* {ideal:.3f} s, "
            f"T_bar {waiting:.3f} s"
        )
        base = times.get("ddp-gloo")
        for way, found in times.items():
            took = statistics.median(found)
            line = f"  {way:<15}{took:8.3f} s  epsilon {ideal / took:.3f}"
            if base is not None and way not in ("alone", "ddp-gloo"):
                low, high = interval(ratio_of_medians, base, found)
                line += f"  {statistics.median(base) / took:.3f} x DDP [{low:.3f}, {high:.3f}]"
            print(line, f" sum of |weights| {results[0]['weights'][way]:.6f}")


@case(
    ranks=4,
    rate=rate("300M"),
    models=words("cnn,lm"),
    ways=words("ddp-gloo,backward,next-forward", f"of {', '.join(WAYS)}"),
    cnn_batch=24,
    lm_batch=6,
    turns=4,
    steps=5,
    timeout=230.0,
)
def torch_shaped(o: Any) -> None:
    """Real training on shaped links: rabit's overlaps beside DDP on gloo, the same model, seed and batch."""
    with lab_or_stop(o.ranks, o.rate) as lab:
        show(o, on_ranks(torch_shaped_rank, o, o.ranks, run=shaped_links.in_lab(lab, o.timeout)))
