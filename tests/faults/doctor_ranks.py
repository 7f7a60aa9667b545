"""Rank programs with one fault each, for the doctor: python doctor_ranks.py FAULT WHO STRENGTH.

Every program is a loop of steps: some work, an allreduce by name, a mark; DOCTOR_FRAMEWORK=torch or ddp: a training
step of torch with DistributedOptimizer or DistributedDataParallel.  A fault is a function of this file, with the name
of the injection in the doctor's table; it is called on rank WHO in every step from the fifth on.
"""

from __future__ import annotations

import ctypes
import mmap
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import rabit

STEPS = 2000
WORK_S = 0.02
NAME = "grad"
# What the doctor's fix says, in its own words: a fault that can be mended in the program obeys it.
FIX = os.environ.get("DOCTOR_FIX", "")
kept: list[object] = []
held = threading.Lock()


def compute(seconds: float) -> None:
    """Uses a core for this much processor time."""
    until = time.thread_time() + seconds
    a = np.ones((64, 64))
    while time.thread_time() < until:
        a @ a


def branch(step: int, strength: float) -> None:
    while True:
        time.sleep(0.2)


def cross_order(step: int, strength: float) -> None:
    rabit.allreduce(np.ones(8), name="second")
    rabit.allreduce(np.ones(8), name="first")


def uneven_steps(step: int, strength: float) -> None:
    if step > 20:
        left_early(step, strength)


def left_early(step: int, strength: float) -> None:
    """As a rank does whose script ends: the others are still in their loop."""
    if FIX == "rabit.join()":
        rabit.join()
    sys.exit(0)


def take_lock() -> None:
    with held:
        return


def fork_deadlock(step: int, strength: float) -> None:
    """A forked worker waits for a lock that a thread held which it does not have."""
    if kept:
        return
    context = multiprocessing.get_context(FIX or "fork")
    with held:
        kept.extend(context.Process(target=take_lock) for _ in range(2))
        for worker in kept:
            worker.start()  # type: ignore[attr-defined]

    def _get_data() -> None:
        for worker in kept:
            worker.join()  # type: ignore[attr-defined]

    _get_data()


def loader_disk(step: int, strength: float) -> None:
    """A file whose reads take long."""

    def _next_data() -> None:
        with Path(os.environ["DOCTOR_FILE"]).open("rb", buffering=0) as file:
            os.pread(file.fileno(), 4096, step * 4096)

    _next_data()


def loader_slow(step: int, strength: float) -> None:
    def _next_data() -> None:
        compute(0.05 * strength)

    _next_data()


def data_skew(step: int, strength: float) -> None:
    compute(0.05 * strength)


def compile_on_one(step: int, strength: float) -> None:
    source = "#include <bits/stdc++.h>\nint main(){std::vector<std::map<int,std::string>> a; a.resize(9);}"
    subprocess.run(
        ["g++", "-O2", "-x", "c++", "-", "-o", "/dev/null"], input=source.encode(), check=True
    )


def checkpoint(step: int, strength: float) -> None:
    def save_checkpoint() -> None:
        time.sleep(0.1 * strength)

    save_checkpoint()


def checkpoint_disk(step: int, strength: float) -> None:
    """A disk that takes its time to have written, every fourth step."""

    def save_checkpoint() -> None:
        with Path(os.environ["DOCTOR_FILE"]).open("rb+") as file:
            file.write(b"weights")
            file.flush()
            os.fsync(file.fileno())

    if step % 4 == 0:
        save_checkpoint()


def blocking_call(step: int, strength: float) -> None:
    """A server that accepts and never answers."""
    import urllib.request

    server = socket.create_server(("127.0.0.1", 0))
    kept.append(server)
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{server.getsockname()[1]}/", timeout=120)
    except OSError:
        return


def gc(step: int, strength: float) -> None:
    import gc as collector

    if not kept:
        collector.disable()
        kept.extend([[i] for i in range(int(150_000 * strength))])
        collector.enable()
        if FIX == "gc.freeze()":
            collector.freeze()
    collector.collect()


def gil_held(step: int, strength: float) -> None:
    def hold() -> None:
        getattr(ctypes, FIX or "PyDLL")(None).sleep(600)

    threading.Thread(target=hold, daemon=True).start()
    time.sleep(0.5)


def raised(step: int, strength: float) -> None:
    raise ValueError("sample 7 is bad")


def not_finite(step: int, strength: float) -> None:
    raise FloatingPointError("the loss of step 5 is not finite")


def stopped(step: int, strength: float) -> None:
    if not kept:
        kept.append(step)
        os.kill(os.getpid(), signal.SIGSTOP)


def foreign_load(step: int, strength: float) -> None:
    """Processes that do not belong to the job: the harness starts them."""
    compute(0.02)


def oversubscribed(step: int, strength: float) -> None:
    """BLAS with many threads on every rank."""
    a = np.ones((700, 700))
    a @ a


def pinned(step: int, strength: float) -> None:
    compute(0.03)


def leak(step: int, strength: float) -> None:
    kept.append(np.ones(int((1 << 18) * strength)))


def killed(step: int, strength: float) -> None:
    if step > 60:
        os.kill(os.getpid(), signal.SIGKILL)


def terminated(step: int, strength: float) -> None:
    if step > 60:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)


def crashed(step: int, strength: float) -> None:
    ctypes.string_at(0)


def crashed_illegal(step: int, strength: float) -> None:
    os.kill(os.getpid(), signal.SIGILL)


def out_of_memory(step: int, strength: float) -> None:
    if len(kept) < 12:
        kept.append(np.ones(int((4 << 20) * strength)))


def swapping(step: int, strength: float) -> None:
    """A file that is larger than what the memory of this rank may hold, read here and there."""
    if not kept:
        Path(os.environ["DOCTOR_GROUP"], "cgroup.procs").write_text(str(os.getpid()))
        kept.append(np.memmap(os.environ["DOCTOR_FILE"], np.uint8, "r"))
    pages = kept[0]
    assert isinstance(pages, np.ndarray)
    until = time.monotonic() + 0.04 * strength
    while time.monotonic() < until:
        pages[np.random.randint(0, len(pages), 64)].sum()


def disk_full(step: int, strength: float) -> None:
    with Path(os.environ["DOCTOR_FILE"]).open("ab") as file:
        if file.tell() > 8 << 20:
            file.truncate(0)
        file.write(bytes(1 << 19))


def shm_full(step: int, strength: float) -> None:
    """What a loader with shared memory does: the file has its size at once, and its pages do not."""
    path = Path(f"/dev/shm/doctor-{os.getpid()}")
    with path.open("wb+") as file:
        path.unlink()
        file.truncate(int(strength * (4 << 20)))
        memory = mmap.mmap(file.fileno(), 0)
        for page in range(0, len(memory), 4096):
            memory[page] = 1


def storage_hangs(step: int, strength: float) -> None:
    with Path(os.environ["DOCTOR_FILE"]).open("rb", buffering=0) as file:
        file.read(10)


def too_many_files(step: int, strength: float) -> None:
    """Of the limit that rabitrun has started with."""
    kept.append(Path("/dev/null").open())  # noqa: SIM115


def port_in_use(step: int, strength: float) -> None:
    kept.append(
        socket.create_server(("127.0.0.1", int(FIX or os.environ["DOCTOR_PORT"])), reuse_port=False)
    )


def ports_exhausted(step: int, strength: float) -> None:
    """A network with two ports for connections of its own."""
    if not kept:
        ctypes.CDLL(None).unshare(0x40000000)
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        Path("/proc/sys/net/ipv4/ip_local_port_range").write_text("40001 40002")
        subprocess.run(["sh", "-c", FIX], check=True)
        kept.append(socket.create_server(("127.0.0.1", 50000)))
    address = kept[0]
    assert isinstance(address, socket.socket)
    if len(kept) < 40:
        kept.append(socket.create_connection(address.getsockname(), timeout=5))


def replicas_differ(step: int, strength: float) -> None:
    """What every rank compares; that of one rank has changed."""


def not_finite_guard(step: int, strength: float) -> None:
    """What every rank checks; that of one rank is not finite."""


def program_differs(step: int, strength: float) -> None:
    """Another copy of this file, which `main` starts."""


def network(step: int, strength: float) -> None:
    """A fault of the network: the harness makes it."""


def one_thread(step: int, strength: float) -> None:
    compute(0.05)


def none_unequal(step: int, strength: float) -> None:
    """Legal: rank 0 evaluates now and then while the others wait."""
    if step % 20 == 0:
        compute(0.05)


def none(step: int, strength: float) -> None:
    """A healthy job."""


# By names that are not those of functions.
FAULTS: dict[str, Callable[[int, float], None]] = {
    "compile": compile_on_one,
    "slow-link": network,
    "lossy-link": network,
    "dead-link": network,
    "stopped/after": stopped,
    "launcher-died": none,
    "far-host": network,
    "own-world": none,
    "terminated/all": none,
    "throttled": foreign_load,
}
# What every rank does, not only WHO.
EVERYWHERE = {"foreign-load", "oversubscribed", "pinned", "throttled", "none", "one-thread"}


def guards(name: str, rank: int, who: int) -> Callable[[], None]:
    """What the ranks of a job check together in every step."""
    from rabit.engine.current import current_engine
    from rabit.engine.process_set import global_process_set
    from rabit.training.integrity import FiniteGuard, ReplicaCheck

    weights = np.ones(64, np.float32)
    if name == "replicas-differ":
        check = ReplicaCheck(4, "weights", current_engine())
        weights[7] += rank == who
        if FIX == "rabit.broadcast_parameters":
            import torch

            import rabit_torch

            rabit_torch.broadcast_parameters({"layer.weight": torch.from_numpy(weights)}, 0)
        return lambda: check.step(lambda: [("layer.weight", weights)])
    guard = FiniteGuard("all", "weights", current_engine(), global_process_set)

    def look() -> None:
        if rank == who and guard.wants(0):
            guard.note("layer.weight", (7,), "nan")
        guard.check()

    return look


def numpy_step(elements: int) -> Callable[[], None]:
    """What a program without a framework does in a step."""
    gradient = np.ones(elements)
    marks = sys.argv[1] != "left-early"

    def step() -> None:
        rabit.allreduce(gradient, name=NAME)
        if marks:
            rabit.mark_step()

    return step


def torch_step(elements: int) -> Callable[[], None]:
    """A step of a model with one parameter, whose optimizer sums gradients and marks the step."""
    import torch

    import rabit_torch

    weight = torch.nn.Parameter(torch.ones(elements))
    optimizer = rabit_torch.DistributedOptimizer(
        torch.optim.SGD([weight], lr=1e-3), named_parameters=[(NAME, weight)]
    )

    def step() -> None:
        optimizer.zero_grad()
        (weight * 2).sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def ddp_step(elements: int) -> Callable[[], None]:
    """A step of DistributedDataParallel over the backend of torch.distributed."""
    import torch
    import torch.distributed as dist

    import rabit_torch.distributed  # noqa: F401 (it makes the backend known)

    dist.init_process_group("rabit")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(elements, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batch = torch.ones(1, elements)

    def step() -> None:
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
        rabit.mark_step()

    return step


STEP = {"numpy": numpy_step, "torch": torch_step, "ddp": ddp_step}


def main() -> None:
    name, who, strength = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    plain = name.replace("-", "_").replace("/", "_")
    fault: Callable[[int, float], None] = FAULTS[name] if name in FAULTS else globals()[plain]
    other = os.environ.get("DOCTOR_OTHER", "")
    if other and __file__ != other and os.environ.get("RABIT_RANK") == str(who):
        os.execv(sys.executable, [sys.executable, other, *sys.argv[1:]])
    framework = os.environ.get("DOCTOR_FRAMEWORK", "numpy")
    if framework != "numpy":
        import rabit_torch  # noqa: F401 (it takes seconds, in which a rank that has met others would look hung)
    rabit.init()
    rank = rabit.rank()
    exchange = STEP[framework](int(os.environ.get("DOCTOR_COUNT", "1000")))
    if name == "pinned" and not FIX:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    has_guard = name in ("replicas-differ", "not-finite/guard")
    check = guards(name, rank, who) if has_guard else None
    for step in range(STEPS):
        compute(WORK_S / 4)
        if step >= 5 and (rank == who or name in EVERYWHERE):
            fault(step, strength)
        if name == "cross-order" and step >= 5:
            rabit.allreduce(np.ones(8), name="first")
            rabit.allreduce(np.ones(8), name="second")
        if check is not None and step >= 5:
            check()
        exchange()
    if FIX == "rabit.join()":
        rabit.join()
    rabit.shutdown()


if __name__ == "__main__":
    main()
