"""MXNet: a training step that overlaps communication, beside steps that wait."""

from __future__ import annotations

import importlib.util
import json
import os
import secrets
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from harness import Option, case

BRIDGE = "rabitmx0"

WORKER = """
import json, statistics, sys, time
from pathlib import Path
import numpy as np
import rabit_mxnet as rabit
import mxnet as mx
from rabit_mxnet import dependency_engine

width, layers, batch, turns, steps, timeline, emulates = json.loads(sys.argv[1])
rabit.init()
mx.random.seed(1)
times = {"forward": 0.0, "backward": 0.0}


class Device(mx.operator.CustomOp):
    def forward(self, is_train, req, in_data, out_data, aux):
        time.sleep(times["forward"])
        self.assign(out_data[0], req[0], in_data[0])

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        time.sleep(times["backward"])
        self.assign(in_grad[0], req[0], out_grad[0])


@mx.operator.register("device")
class DeviceProperties(mx.operator.CustomOpProp):
    def create_operator(self, context, shapes, dtypes):
        return Device()


class Occupied(mx.gluon.Block):
    def forward(self, x):
        return mx.nd.Custom(x, op_type="device")


net = mx.gluon.nn.Sequential()
for number in range(layers):  # Gluon numbers parameters in the order of their names.
    prefix = f"layer{number:03}_"
    net.add(mx.gluon.nn.Dense(width, in_units=width, activation="tanh", prefix=prefix))
    if emulates:
        net.add(Occupied())
net.initialize(mx.init.Xavier())
params = net.collect_params()
rabit.broadcast_parameters(params, root_rank=0)
trainer = rabit.DistributedTrainer(params, "sgd", {"learning_rate": 1e-3})
data = None


def compute():
    with mx.autograd.record():
        loss = (net(data) ** 2).mean()
    loss.backward()


def run(count, communicates=True):
    mx.nd.waitall()
    rabit.barrier()
    started = time.perf_counter()
    for _ in range(count):
        compute()
        if communicates:
            trainer.step(1)
    mx.nd.waitall()
    return (time.perf_counter() - started) / count


def apart(count):
    mx.nd.waitall()
    rabit.barrier()
    started = time.perf_counter()
    for _ in range(count):
        compute()
        mx.nd.waitall()
        trainer.step(1)
        mx.nd.waitall()
    return (time.perf_counter() - started) / count


def waiting(count):
    original = dependency_engine.is_usable
    dependency_engine.is_usable = lambda: False
    try:
        return run(count)
    finally:
        dependency_engine.is_usable = original


def set_compute(amount):
    global data
    rows = 8 if emulates else int(amount)
    times.update(forward=amount / (3 * layers), backward=2 * amount / (3 * layers))
    data = mx.nd.random.uniform(shape=(rows, width))
    run(2)


amount = batch or (0.15 if emulates else 512)
set_compute(amount)
if not batch:
    # As much computation as communication, by rank 0's clock.
    for _ in range(2):
        alone = run(steps, False)
        exchange = apart(steps) - alone
        amount *= min(max(exchange / alone, 0.2), 5.0)  # a bad measurement is made up for by the next
        amount = rabit.broadcast_object(amount, root_rank=0)
        set_compute(amount)
found = {"compute": [], "waiting": [], "apart": [], "overlapping": [], "amount": amount}
for _ in range(turns):
    found["compute"].append(run(steps, False))
    found["waiting"].append(waiting(steps))
    found["apart"].append(apart(steps))
    found["overlapping"].append(run(steps))
if rabit.rank() == 0:
    rabit.start_timeline(timeline)
found["traced"] = run(steps)
if rabit.rank() == 0:
    rabit.stop_timeline()
if rabit.rank() == 0:
    print("RESULT " + json.dumps(found), flush=True)
rabit.shutdown()
"""


def command(*words: str, may_fail: bool = False) -> None:
    subprocess.run(words, check=not may_fail, capture_output=may_fail)


def make_network(ranks: int, mbit: int) -> None:
    remove_network(ranks)
    command("ip", "link", "add", BRIDGE, "type", "bridge")
    command("ip", "addr", "add", "10.87.0.254/24", "dev", BRIDGE)
    command("ip", "link", "set", BRIDGE, "up")
    shape = ["root", "tbf", "rate", f"{mbit}mbit", "burst", "64kb", "latency", "50ms"]
    for rank in range(ranks):
        space, outer = f"rabitmx{rank}n", f"rabitmx{rank}o"
        command("ip", "netns", "add", space)
        command("ip", "link", "add", outer, "type", "veth", "peer", "name", "eth0", "netns", space)
        command("ip", "link", "set", outer, "master", BRIDGE, "up")
        command("tc", "qdisc", "add", "dev", outer, *shape)
        command("ip", "-n", space, "addr", "add", f"10.87.0.{rank + 1}/24", "dev", "eth0")
        command("ip", "-n", space, "link", "set", "eth0", "up")
        command("ip", "-n", space, "link", "set", "lo", "up")
        command("ip", "netns", "exec", space, "tc", "qdisc", "add", "dev", "eth0", *shape)


def remove_network(ranks: int) -> None:
    for rank in range(ranks):
        command("ip", "netns", "del", f"rabitmx{rank}n", may_fail=True)
        command("ip", "link", "del", f"rabitmx{rank}o", may_fail=True)
    command("ip", "link", "del", BRIDGE, may_fail=True)


def core_of(rank: int) -> list[str]:
    """A prefix that keeps a rank on one core: each gets the same share, whatever the others do."""
    taskset = shutil.which("taskset")
    cores = sorted(os.sched_getaffinity(0))
    return [taskset, "-c", str(cores[rank % len(cores)])] if taskset else []


def run_ranks(ranks: int, settings: list, folder: Path) -> dict:
    from rabit.rendezvous.discovery import StoreServer

    secret = secrets.token_bytes(32)
    secret_file = folder / "secret"
    secret_file.touch(mode=0o600)
    secret_file.write_text(secret.hex())
    script = folder / "worker.py"
    script.write_text(WORKER)
    store = StoreServer("10.87.0.254", 0, secret)
    processes = []
    try:
        for rank in range(ranks):
            variables = {
                "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
                "OMP_NUM_THREADS": "1",
                "RABIT_RANK": str(rank),
                "RABIT_SIZE": str(ranks),
                "RABIT_LOCAL_RANK": "0",
                "RABIT_LOCAL_SIZE": "1",
                "RABIT_CROSS_RANK": str(rank),
                "RABIT_CROSS_SIZE": str(ranks),
                "RABIT_HOST_KEY": f"namespace{rank}",
                "RABIT_STORE_ADDRESS": f"10.87.0.254:{store.port}",
                "RABIT_SECRET_FILE": str(secret_file),
            }
            words = ["ip", "netns", "exec", f"rabitmx{rank}n", *core_of(rank)]
            words += [sys.executable, str(script)]
            with (folder / f"output.{rank}").open("w") as output:
                processes.append(
                    subprocess.Popen(
                        [*words, json.dumps(settings)],
                        env={**os.environ, **variables},
                        stdout=output,
                        stderr=subprocess.STDOUT,
                    )
                )
        statuses = [process.wait(timeout=600) for process in processes]
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()
        store.close()
    texts = [(folder / f"output.{rank}").read_text() for rank in range(ranks)]
    if any(statuses):
        raise SystemExit(f"ranks ended with {statuses}\n" + "\n".join(texts))
    line = next(line for line in texts[0].splitlines() if line.startswith("RESULT "))
    return json.loads(line.removeprefix("RESULT "))


def busy_seconds(trace: list[dict]) -> float:
    """How long at least one exchange was under way on rank 0."""
    spans = sorted((event["ts"], event["ts"] + event["dur"]) for event in trace if event.get("name") == "ALLREDUCE")
    busy = reached = 0.0
    for begin, end in spans:
        busy += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return busy / 1e6


def show_step(trace: list[dict]) -> None:
    """When the weights' gradients of one step were complete, and when they travelled."""
    rows = {e["tid"]: e["args"]["name"] for e in trace if e.get("name") == "thread_name"}
    ready: dict[int, list[float]] = {}
    spans: dict[int, list[tuple[float, float]]] = {}
    for event in trace:
        number = rows.get(event.get("tid"), "").rpartition(".")[2]
        if not number.isdigit() or int(number) % 2 == 0:  # Biases have the even numbers.
            continue
        layer, begin = int(number) // 2 + 1, event.get("ts", 0.0) / 1000
        if event["name"] == "NEGOTIATE_ALLREDUCE":
            ready.setdefault(layer, []).append(begin)
        elif event["name"] == "ALLREDUCE":
            spans.setdefault(layer, []).append((begin, begin + event["dur"] / 1000))
    step = 1  # the first of the trace has no exchange of an earlier one beside it
    origin = min(times[step] for times in ready.values())
    print("layer  complete  travels from  to   (ms)")
    for layer in sorted(ready, reverse=True):
        first, last = ready[layer][step], ready[layer][step + 1]
        mine = [span for span in spans[layer] if first <= span[0] < last]
        begin, end = min(span[0] for span in mine), max(span[1] for span in mine)
        print(f"{layer:5}  {first - origin:8.1f}  {begin - origin:12.1f}  {end - origin:.1f}")
    following = min(times[step + 1] for times in ready.values()) - origin
    print(f"the first gradient of the next step is complete at {following:.1f}")


def report(o: Any, found: dict, busy: float) -> None:
    gradient_bytes = o.layers * (o.width**2 + o.width) * 4
    print(
        f"{o.ranks} ranks, {o.mbit} Mbit/s, {gradient_bytes / 2**20:.1f} MiB of gradients, "
        + ("emulated devices" if o.emulate else f"{int(found['amount'])} rows a rank")
    )
    for kind in ("compute", "waiting", "apart", "overlapping"):
        print(f"{kind:12} {1000 * statistics.median(found[kind]):8.1f} ms per step")
    for kind in ("waiting", "apart"):
        ratios = [a / b for a, b in zip(found[kind], found["overlapping"], strict=True)]
        each = " ".join(f"{ratio:.2f}" for ratio in ratios)
        print(f"{kind} / overlapping: {statistics.median(ratios):.2f} (turns: {each})")
    compute, step = statistics.median(found["compute"]), found["traced"]
    print(
        f"timeline of rank 0: exchanges under way for {1000 * busy:.1f} ms of a step of "
        f"{1000 * step:.1f} ms, so at least {1000 * max(0.0, busy + compute - step):.1f} ms of them "
        "beside computation"
    )


@case(
    ranks=4,
    mbit=Option("200", int, "of each link, both ways"),
    width=Option("226", int, "of every layer"),
    layers=12,
    batch=Option("0", int, "rows; 0: so many that compute takes as long as the link"),
    emulate=False,
    turns=5,
    steps=Option("12", int, "of every kind in a turn"),
    timeline=Option("", help="file that keeps the trace of rank 0"),
)
def mxnet_overlap(o: Any) -> None:
    """MXNet: a training step that overlaps communication, beside steps that wait.

    Ranks in network namespaces, whose links are shaped (root, ip and tc). Waiting: every operation is waited for, as
    where MXNet's engine cannot be joined. Apart: all gradients of a step are exchanged at once, between the end of the
    backward pass and the next forward pass. All kinds of step run in the same processes, in turns. Every rank stays on
    one core, which it shares where there are fewer, also with the exchange itself; with --emulate every layer occupies
    a clock for its time, as a device of its own would. MXNET_ variables apply as ever.
    """
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("tc"):
        print("skipped: network namespaces need root, ip and tc")
        return
    if importlib.util.find_spec("mxnet") is None:
        print("skipped: mxnet is not installed: pip install 'mariza-rabit[mxnet]'")
        return
    try:
        make_network(o.ranks, o.mbit)
        with tempfile.TemporaryDirectory() as folder:
            timeline = Path(o.timeline or Path(folder, "timeline.json")).absolute()
            settings = [o.width, o.layers, o.batch, o.turns, o.steps, str(timeline), o.emulate]
            found = run_ranks(o.ranks, settings, Path(folder))
            trace = json.loads(timeline.read_text())
    finally:
        remove_network(o.ranks)
    report(o, found, busy_seconds(trace) / o.steps)
    show_step(trace)
