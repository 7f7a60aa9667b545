"""Ways of tests/bench schedule that train modules of torch: DDP on gloo, and DistributedOptimizer.

Layers are autograd functions that sleep; parameters, hooks and, for DistributedOptimizer, SGD are real.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from schedule_device import Device, Silent
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import rabit_torch
from rabit.engine.current import engine_of_thread
from rabit.engine.engine import Engine
from rabit.tuning.step_time import Layer


class Occupy(torch.autograd.Function):
    """Occupies the device for the time of a layer."""

    @staticmethod
    def forward(context: Any, x: Any, weight: Any, device: Device, layer: Layer) -> Any:
        context.device, context.layer, context.like = device, layer, weight
        first = weight[:1].clone()  # the read that an update has to come before
        device.run(layer.forward)
        return x + 0 * first

    @staticmethod
    def backward(context: Any, grad: Any) -> Any:
        gradient = torch.zeros_like(context.like)  # within the time of the device
        context.device.continue_for(context.layer.backward)
        return grad, gradient, None, None


class Emulated(nn.Module):
    """One layer, with a parameter of its size."""

    def __init__(self, device: Device, layer: Layer) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(layer.bytes // 4))
        self._device, self._layer = device, layer

    def forward(self, x: Any) -> Any:
        return Occupy.apply(x, self.weight, self._device, self._layer)


def emulated(layers: Sequence[Layer], device: Device) -> nn.Sequential:
    torch.set_num_threads(1)
    return nn.Sequential(*[Emulated(device, layer) for layer in layers])


class Ddp(Silent):
    """torch's DistributedDataParallel on gloo."""

    def __init__(self, layers: Sequence[Layer], rank: int, ranks: int, store: str, bucket_bytes: int) -> None:
        super().__init__(layers)
        if not dist.is_initialized():
            dist.init_process_group("gloo", init_method=store, rank=rank, world_size=ranks)
        self._model = DistributedDataParallel(
            emulated(layers, self.device), gradient_as_bucket_view=True, bucket_cap_mb=bucket_bytes / (1 << 20)
        )
        self._x = torch.zeros(1, requires_grad=True)

    def steps(self, count: int) -> list[float]:
        moments = []
        for _ in range(count):
            moments.append(time.perf_counter())
            self._model.zero_grad(set_to_none=True)
            self._model(self._x).sum().backward()
        moments.append(time.perf_counter())
        return moments


class Trained(Silent):
    """DistributedOptimizer with the settings that it has by itself, and SGD."""

    def __init__(self, layers: Sequence[Layer], engine: Engine, overlap: str) -> None:
        super().__init__(layers)
        self._engine = engine
        self._model = emulated(layers, self.device)
        with engine_of_thread(engine):
            self._optimizer: Any = rabit_torch.DistributedOptimizer(
                torch.optim.SGD(self._model.parameters(), lr=0.01), self._model.named_parameters(), overlap=overlap
            )
        self._x = torch.zeros(1, requires_grad=True)

    def steps(self, count: int) -> list[float]:
        moments = []
        with engine_of_thread(self._engine):
            for _ in range(count):
                moments.append(time.perf_counter())
                self._optimizer.zero_grad()
                self._model(self._x).sum().backward()
                self._optimizer.step()
        moments.append(time.perf_counter())
        return moments

    def drain(self) -> None:
        with engine_of_thread(self._engine):
            self._optimizer.flush()
