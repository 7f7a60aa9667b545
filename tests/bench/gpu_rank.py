"""A rank of gpu_figures.py."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

BUSY_S = 0.1
REPEATS = 5


class Real:
    """A GPU."""

    def __init__(self, rank: int) -> None:
        self.device = torch.device("cuda", rank % torch.cuda.device_count())
        torch.cuda.set_device(self.device)
        self._cycles_per_s = self._measure_clock()

    def _measure_clock(self) -> float:
        cycles = 20_000_000
        for _ in range(2):  # the first one loads the kernel
            torch.cuda.synchronize()
            began = time.perf_counter()
            torch.cuda._sleep(cycles)
            torch.cuda.synchronize()
            seconds = time.perf_counter() - began
        return cycles / seconds

    def tensor(self, count: int, value: float = 1.0) -> torch.Tensor:
        return torch.full((count,), value, device=self.device)

    def be_busy(self) -> None:
        """Puts work of BUSY_S seconds on the stream."""
        torch.cuda._sleep(int(BUSY_S * self._cycles_per_s))

    def finish(self) -> None:
        torch.cuda.synchronize()

    def used_bytes(self) -> int:
        free, total = torch.cuda.mem_get_info()
        return int(total - free)

    def copy_both_ways(self, tensor: torch.Tensor) -> Callable[[], None]:
        pinned = torch.empty(tensor.numel(), pin_memory=True)

        def copies() -> None:
            pinned.copy_(tensor, non_blocking=True)
            tensor.copy_(pinned, non_blocking=True)

        return copies


class Emulated:
    """The emulated driver: the same calls, and figures that mean nothing."""

    def __init__(self, rank: int) -> None:
        from support import cuda_tensor

        self._of, self._index = cuda_tensor, rank % 2

    def tensor(self, count: int, value: float = 1.0) -> torch.Tensor:
        made: torch.Tensor = self._of.on_device(torch.full((count,), value), self._index)
        return made

    def be_busy(self) -> None:
        self._of.driver.launch(self._index, lambda: time.sleep(BUSY_S))

    def finish(self) -> None:
        self._of.driver.finish(self._index)

    def used_bytes(self) -> int:
        return 0

    def copy_both_ways(self, tensor: torch.Tensor) -> Callable[[], None]:
        return lambda: tensor.copy_(tensor.cpu())


def best_of(device: Any, call: Callable[[], Any]) -> float:
    """Seconds until the device has done it, the best of some."""
    best = float("inf")
    for _ in range(REPEATS):
        device.finish()
        began = time.perf_counter()
        call()
        device.finish()
        best = min(best, time.perf_counter() - began)
    return best


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms"


def copies(rabit: Any, device: Any, count: int) -> list[list[str]]:
    """Staging of one rank, which exchanges nothing, beside the copies alone."""
    tensor = device.tensor(count)
    alone = best_of(device, device.copy_both_ways(tensor))
    staged = best_of(device, lambda: rabit.allreduce_(tensor, name="staged"))
    return [
        ["to the host and back, copies alone", milliseconds(alone)],
        ["to the host and back, staged", f"{milliseconds(staged)}, {alone / staged:.2f} of that"],
    ]


def against_gloo(rabit: Any, device: Any, count: int) -> list[list[str]]:
    rows = []
    has_gloo = isinstance(device, Real)
    if has_gloo:
        dist.init_process_group("gloo", rank=rabit.rank(), world_size=rabit.size())
    for elements in (max(1, count // 64), count):
        tensor = device.tensor(elements)
        staged = best_of(device, lambda x=tensor: rabit.allreduce_(x, name="staged"))
        text = milliseconds(staged)
        if has_gloo:
            theirs = best_of(device, lambda x=tensor: dist.all_reduce(x))
            text += f", gloo {milliseconds(theirs)}, {theirs / staged:.2f} times that"
        rows.append([f"allreduce of {elements * 4 >> 10} KiB", text])
    if has_gloo:
        dist.destroy_process_group()
    return rows


def host_ahead(rabit: Any, device: Any, count: int) -> list[list[str]]:
    """How long the host is in each call while the device is busy for BUSY_S before."""
    parameter = torch.nn.Parameter(device.tensor(count))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    optimizer = rabit.DistributedOptimizer(optimizer, named_parameters=[("weight", parameter)])
    loss = (parameter * 2.0).sum()
    loss.backward(retain_graph=True)
    optimizer.synchronize()
    spent = {"backward()": 0.0, "synchronize()": 0.0}
    for _ in range(REPEATS):
        optimizer.zero_grad(set_to_none=False)  # a gradient may come once
        rabit.barrier()
        device.finish()
        device.be_busy()
        began = time.perf_counter()
        if isinstance(device, Real):
            loss.backward(retain_graph=True)
        else:  # torch's operations on emulated tensors wait for the device
            handle = rabit.allreduce_async_(parameter.grad, name="weight.grad")
        middle = time.perf_counter()
        optimizer.synchronize() if isinstance(device, Real) else rabit.synchronize(handle)
        ended = time.perf_counter()
        spent["backward()"] = max(spent["backward()"], middle - began)
        spent["synchronize()"] = max(spent["synchronize()"], ended - middle)
    return [
        [f"host in {call}, the device busy for {BUSY_S * 1e3:.0f} ms", milliseconds(seconds)]
        for call, seconds in spent.items()
    ]


def bandwidth(rabit: Any, device: Any, count: int) -> list[list[str]]:
    rows = []
    for elements in (max(1, count // 1024), count):
        tensor = device.tensor(elements)
        seconds = best_of(device, lambda x=tensor: rabit.allreduce_(x, name="nccl"))
        rate = elements * 4 / seconds / 1e9
        rows.append([f"allreduce of {elements * 4 >> 10} KiB", f"{milliseconds(seconds)}, {rate:.2f} GB/s"])
    return rows


def inside_hosts(rabit: Any, device: Any, count: int) -> list[list[str]]:
    """Each rank claims a host of its own: what the route between hosts costs, without a network."""
    rows = bandwidth(rabit, device, count)
    routes = rabit.statistics()["routes"]
    assert any(each["backend"] == "nccl.hierarchical" for each in routes), routes
    return [[f"{title}, nccl/hierarchical on two claimed hosts", text] for title, text in rows]


def memory(rabit: Any, device: Any, count: int) -> list[list[str]]:
    """What the engine takes on the device, for a large tensor and for many small ones that are fused."""
    large = device.tensor(count)
    small = [device.tensor(1000) for _ in range(100)]
    # What the driver tells is what all processes of the device use.
    device.finish()
    rabit.barrier()
    before = device.used_bytes()
    rabit.barrier()
    for _ in range(REPEATS):
        rabit.allreduce_(large, name="large")
        rabit.grouped_allreduce_(small, name="small")
    device.finish()
    rabit.barrier()
    taken = device.used_bytes() - before
    rabit.barrier()  # nobody goes before all have looked
    return [["memory of the device that the engines took", f"{taken >> 20} MiB"]]


RUNS = {each.__name__: each for each in (copies, against_gloo, host_ahead, bandwidth, inside_hosts, memory)}


def gpu_rank(o: Any) -> list[list[str]]:
    """The rows of `o.title`."""
    is_emulated = "EMULATED_CUDA" in os.environ
    if is_emulated:
        import support.cuda_tensor  # noqa: F401  # the driver is there before an engine looks for it
    if o.title == "inside_hosts":
        os.environ["RABIT_HOST_KEY"] = f"host{os.environ['RABIT_RANK']}"
        os.environ["RABIT_ROUTE"] = "allreduce:nccl/hierarchical"
    import rabit_torch as rabit

    rabit.init()
    device = Emulated(rabit.rank()) if is_emulated else Real(rabit.local_rank())
    rows = RUNS[o.title](rabit, device, o.megabytes << 18)
    rabit.shutdown()
    return rows
