"""Training loops on networks whose links differ, or change meanwhile.  Needs root, ip and tc."""

from __future__ import annotations

import json
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from harness import case, choice, median, on_ranks, sizes, table, words
from harness import links as shaped_links
from harness.network import build_network
from plans import racks, star


@case(network=choice("star", "racks"), ways=words("auto,kept,off"), hosts=4, mbit=50.0, sizes=sizes("2M"), before=90,
      after=60, slow_host=3, factor=0.5)  # fmt: skip
def plan_change(o: Any) -> bool:
    """A training loop while the link of one host gets slower: steps before and after, with and without a new plan.

    auto: RABIT_PLAN=auto; kept: the same, without the watch, so that the plan of the start stays; off: no plan. A step
    is one allreduce and mark_step(). --factor 1: nothing changes, and the figure is what watching costs.
    """
    if why := shaped_links.why_not():
        print(f"skipped: links cannot be shaped here: {why}")
        return True
    network = {"star": star(*[o.mbit] * o.hosts), "racks": racks(o.hosts, o.mbit, o.mbit / 2)}[o.network]
    rows = []
    for way in o.ways:
        o.way = way
        with tempfile.TemporaryDirectory() as folder, build_network(network) as lab:
            o.signal = str(Path(folder) / "half")
            is_over = threading.Event()
            slows = threading.Thread(target=slow_down, args=(o, lab, is_over))
            slows.start()
            try:
                found = on_ranks(changing_rank, o, o.hosts, run=shaped_links.in_lab(lab, timeout=900))
            finally:
                is_over.set()
                slows.join()
        times = [max(turn) for turn in zip(*(rank[0] for rank in found), strict=True)]
        plan = found[0][1]
        settled = times[o.before + o.after // 2 :]
        replanned = [step - o.before for step in plan.get("replanned_at", [])]
        rows.append([way, f"{median(times[: o.before]):.3f} s", f"{median(settled):.3f} s", f"{sum(times):.1f} s",
                     ", ".join(map(str, replanned)) or "-", str(plan.get("probes", 0))])  # fmt: skip
    table(["", "step before", "step after", "all steps", "new plan after steps", "probes"], rows)
    return True


def slow_down(o: Any, lab: Any, is_over: threading.Event) -> None:
    """Shapes the link when rank 0 has made its file."""
    while not is_over.wait(0.05):
        if Path(o.signal).exists():
            if o.factor != 1:
                lab.reshape(o.slow_host, o.mbit * 1e6 * o.factor, shaped_links.LONG_QUEUE_SECONDS)
            return


def changing_rank(o: Any) -> tuple[list[float], dict[str, Any]]:
    import os

    import numpy as np

    os.environ["RABIT_PLAN"] = "off" if o.way == "off" else "auto"
    import rabit
    from rabit.engine.current import current_engine

    rabit.init()
    if o.way == "kept":
        current_engine().plan_watch = None
    total = rabit.size() * (rabit.size() + 1) / 2
    array = np.full(o.sizes[0] // 4, rabit.rank() + 1, np.float32)
    rabit.barrier()
    taken = []
    for step in range(o.before + o.after):
        if step == o.before and rabit.rank() == 0:
            Path(o.signal).touch()
        began = time.perf_counter()
        out = rabit.allreduce(array, name="gradients", op=rabit.Sum)
        assert out[0] == out[-1] == total
        rabit.mark_step()
        taken.append(time.perf_counter() - began)
    report = current_engine().statistics().get("plan", {})
    rabit.shutdown()
    return taken, json.loads(json.dumps(report))


@case(network=choice("racks"), ways=words("off,plan,next-off,next-plan,ddp-gloo"), hosts=4, mbit=50.0,
      sizes=sizes("4M"), rho=1.0, steps=8, shape=choice("vgg", "resnet", "lm"))  # fmt: skip
def plan_training(o: Any) -> bool:
    """Steps of DistributedOptimizer on two racks with a thin link, with a plan and without, next to DDP on gloo.

    The ways next-off and next-plan let gradients travel during the next forward pass, too; stage3-off and stage3-plan
    divide parameters, gradients and the optimizer's state among the ranks. Layers are emulated: they take time and no
    processor, parameters and hooks are real. rho: the time that the exchange of all gradients takes at the planner's
    optimum, over that of the computation. floor: what a step takes at the least where links carry their nominal rate
    and the backward pass begins with all gradients, along the plan or around a ring, as of gloo.
    """
    from schedule_shapes import scaled

    from rabit.planner import Plan, Topology
    from rabit.planner.document import described

    if why := shaped_links.why_not():
        print(f"skipped: links cannot be shaped here: {why}")
        return True
    network = racks(o.hosts, o.mbit, o.mbit / 2)
    plan = Plan(Topology.from_json(json.dumps(network), o.network))
    exchange = o.sizes[0] * 8 / (float(plan.allreduce) * 1e6)
    layers = scaled(o.shape, exchange / o.rho, o.sizes[0], o.hosts)
    o.layers = [[layer.forward, layer.backward, layer.bytes] for layer in layers]
    forward, computation = sum(layer.forward for layer in layers), exchange / o.rho
    around = o.sizes[0] * 8 / (float(plan.ring()) * 1e6)
    floors = {way: max(computation, took) if way.startswith("next") else max(computation, forward + took)
              for way in o.ways if not way.startswith("stage3")
              for took in [exchange if way.endswith("plan") else around]}  # fmt: skip
    times: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder, build_network(network) as lab:
        path = Path(folder) / "plan.json"
        path.write_text(json.dumps(described(plan)))
        for way in o.ways:
            o.way, o.plan = way, str(path) if way.endswith("plan") else "off"
            moments = on_ranks(training_rank, o, o.hosts, run=shaped_links.in_lab(lab, timeout=600))
            times[way] = median(shaped_links.step_times([[rank] for rank in moments]))
    print(f"computation {computation:.2f} s, exchange at the optimum {exchange:.2f} s, around a ring {around:.2f} s")
    rows = []
    for way, taken in times.items():
        without = "off" if way == "ddp-gloo" else way.replace("plan", "off")
        ratios = [f"{times[other] / taken:.2f}" if other in times else "-" for other in (without, "ddp-gloo")]
        rows.append([way, f"{taken:.3f} s", f"{floors[way]:.3f} s" if way in floors else "-", *ratios])
    table(["way", "step", "floor", "without plan / it", "gloo / it"], rows)
    return True


def training_rank(o: Any) -> list[float]:
    import os

    os.environ["RABIT_PLAN"] = o.plan
    import torch
    import torch.distributed as dist
    from schedule_device import Device
    from schedule_torch import emulated

    import rabit_torch
    from rabit.tuning.step_time import Layer

    rabit_torch.init()
    device = Device()
    net: Any = emulated([Layer(forward, backward, int(size)) for forward, backward, size in o.layers], device)
    optimizer: Any = torch.optim.SGD(net.parameters(), lr=0.01)
    if o.way == "ddp-gloo":
        store = f"file://{o.folder}/gloo"
        dist.init_process_group("gloo", init_method=store, rank=rabit_torch.rank(), world_size=rabit_torch.size())
        net = torch.nn.parallel.DistributedDataParallel(net, bucket_cap_mb=1)
    else:
        how: dict[str, dict[str, Any]] = {
            "stage3": {"shard": "parameters", "model": net}, "next": {"overlap": "next-forward"},
        }  # fmt: skip
        chosen = how.get(o.way.partition("-")[0], {})
        optimizer = rabit_torch.DistributedOptimizer(optimizer, named_parameters=net.named_parameters(), **chosen)
    moments = []
    x = torch.zeros(1, requires_grad=True)
    for step in range(o.steps + 3):
        if step >= 2:
            moments.append(time.perf_counter())
        optimizer.zero_grad()
        net(x).sum().backward()
        optimizer.step()
    moments.append(time.perf_counter())
    rabit_torch.barrier()
    if o.way == "ddp-gloo":
        dist.destroy_process_group()
    rabit_torch.shutdown()
    return moments
