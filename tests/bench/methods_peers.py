"""Steps a second at equal loss on a slow link.

Every rank is a process in a network namespace whose link is shaped.  Two layers learn what a teacher of the
same shape does to random inputs: 5 MiB of gradients a step.  All ways begin with the same parameters, see
the same data, and take turns.  A pair is compared in seconds of a step only if the losses on data that was
not trained on are equal: within a twentieth of what the peer has gained.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from harness import Option, case, lab_or_stop, on_ranks, rate
from harness import links as shaped_links
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

import rabit_torch as rabit

SIDE, OUT, BATCH, LR = 1024, 256, 16, 0.5
WAYS = (
    "mean",
    "mean:codec=fp16",
    "bytegrad",
    "powersgd:rank=2,start=2",
    "ddp",
    "ddp fp16 hook",
    "ddp PowerSGD hook, rank 2",
)
# Ours, the peer, and how many times its steps a second ours is to take.
PAIRS = (("bytegrad", "ddp fp16 hook", 1.5), ("powersgd:rank=2,start=2", "ddp PowerSGD hook, rank 2", 1.5))
EQUAL = 0.05  # of the gain in loss
FIRST = 4  # steps that are not timed: torch's PowerSGD sends two gradients whole, and buckets are built


def net(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(SIDE, SIDE), nn.Tanh(), nn.Linear(SIDE, OUT))


def batch(teacher: nn.Module, count: int, *seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    number = sum(each * 1009**place for place, each in enumerate(seed, 1))
    x = torch.randn(count, SIDE, generator=torch.Generator().manual_seed(number))
    with torch.no_grad():
        return x, 8 * teacher(x)


class Learner:
    """One way from the first parameters on."""

    def __init__(self, name: str) -> None:
        self._teacher, self._net, self._step = net(7), net(8), 0
        self._unseen = batch(self._teacher, 64, 1, rabit.rank())
        self.seconds: list[float] = []
        self.processor_seconds: list[float] = []  # of this rank
        plain = torch.optim.SGD(self._net.parameters(), lr=LR, momentum=0.9)
        self._model: nn.Module = self._net
        self._optimizer: Any = plain
        if name.startswith("ddp"):
            self._model = of_torch(name, self._net)
        else:
            self._optimizer = rabit.DistributedOptimizer(plain, self._net.named_parameters(), strategy=name)

    def steps(self, count: int) -> None:
        for _ in range(count):
            x, y = batch(self._teacher, BATCH, 2, self._step, rabit.rank())
            begin, busy = time.perf_counter(), time.process_time()
            self._optimizer.zero_grad()
            (self._model(x) - y).square().mean().backward()
            self._optimizer.step()
            self._step += 1
            if self._step > FIRST:
                self.seconds.append(time.perf_counter() - begin)
                self.processor_seconds.append(time.process_time() - busy)

    def loss(self) -> float:
        x, y = self._unseen
        with torch.no_grad():
            mine = (self._net(x) - y).square().mean()
        return float(rabit.allreduce(mine, name="loss"))


def of_torch(name: str, model: nn.Module) -> nn.Module:
    # In one bucket: two would wait for each other, as the hook blocks threads of gloo that it needs itself.
    found = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=1024)
    if "fp16" in name:
        found.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif "PowerSGD" in name:
        state = powerSGD_hook.PowerSGDState(None, 2, start_powerSGD_iter=2)
        found.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return found


def methods_peers_rank(o: Any) -> dict[str, dict[str, float]]:
    torch.set_num_threads(1)
    rabit.init()
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{o.folder}/gloo", rank=rabit.rank(), world_size=rabit.size()
    )
    learners = {name: Learner(name) for name in o.chosen}
    begin = next(iter(learners.values())).loss()
    for turn in range(o.turns):
        for name, learner in learners.items():
            rabit.barrier()
            learner.steps(o.steps + (0 if turn else FIRST))
            if rabit.rank() == 0:
                print(f"turn {turn} {name}: {learner.seconds[-1]:.4f} s", file=sys.stderr, flush=True)
    found = {
        name: {
            "seconds": statistics.median(each.seconds),
            "processor_seconds": statistics.median(each.processor_seconds),
            "begin": begin,
            "loss": each.loss(),
        }
        for name, each in learners.items()
    }
    rabit.barrier()
    torch.distributed.destroy_process_group()
    rabit.shutdown()
    return found


def judged(rows: dict[str, dict[str, float]]) -> list[dict[str, Any]]:
    """What the pairs of which both were measured show."""
    found = []
    for ours, peer, least in PAIRS:
        if ours not in rows or peer not in rows:
            continue
        times = rows[peer]["seconds"] / rows[ours]["seconds"]
        apart = (rows[ours]["loss"] - rows[peer]["loss"]) / (rows[peer]["begin"] - rows[peer]["loss"])
        says = "holds" if times >= least else f"not {least:g} times"
        if apart > EQUAL:
            says = f"no verdict: the losses differ by {apart:.1%} of the gain"
        found.append({"ours": ours, "peer": peer, "times": times, "apart": apart, "says": says})
    return found


@case(
    ranks=4,
    rate=rate("100M"),
    ways=Option("", help="some of them, with + between"),
    turns=2,
    steps=10,
    timeout=400.0,
    save=Option("", help="a JSON file for methods_verdict"),
)
def methods_peers(o: Any) -> None:
    """Steps a second at equal loss on a slow link: our methods and the hooks of torch's DDP on gloo, in one run."""
    o.chosen = o.ways.split("+") if o.ways else list(WAYS)
    with lab_or_stop(o.ranks, o.rate, segment_bytes=shaped_links.SEGMENT_BYTES) as lab:
        rows = on_ranks(methods_peers_rank, o, o.ranks, run=shaped_links.in_lab(lab, o.timeout))[0]
    print(f"{o.ranks} ranks, {o.rate / 1e6:g} Mbit/s, 5 MiB of gradients")
    for name, row in rows.items():
        print(
            f"{name:28}{row['seconds']:9.4f} s a step, {row['processor_seconds']:.4f} of a processor, "
            f"loss {row['begin']:.4f} to {row['loss']:.4f}"
        )
    pairs = judged(rows)
    for each in pairs:
        print(f"{each['ours']} takes {each['times']:.2f} times the steps of {each['peer']}: {each['says']}")
    if o.save:
        Path(o.save).parent.mkdir(parents=True, exist_ok=True)
        saved = {"rate": o.rate, "rows": rows, "pairs": pairs}
        Path(o.save).write_text(json.dumps(saved, indent=1) + "\n")
