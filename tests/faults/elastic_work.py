"""What the jobs of elastic_schedules.py train: an array by hand, or a table by an optimizer of torch.

Every gradient is a small integer, the same number everywhere in it, so that sums over the ranks are exact and what a
job has come to can be computed by one process from the numbers of ranks of its steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

import rabit
import rabit.elastic

SAMPLES, BATCH = 60, 2


class ArrayWork:
    """Sums of gradients, and samples that are taken from the sampler by hand."""

    def __init__(self) -> None:
        sampler = rabit.elastic.ElasticSampler(range(SAMPLES), seed=3)
        self.state = rabit.elastic.ObjectState(step=0, weights=np.zeros(20_000), sizes=[], seen=[], sampler=sampler)
        self._handle: Any = None

    def batches(self) -> Iterator[list[int]]:
        indices = list(self.state.sampler)
        return (indices[first : first + BATCH] for first in range(0, len(indices), BATCH))

    def send(self, number: int) -> None:
        gradient = np.full(20_000, number, np.float64)
        self._handle = rabit.allreduce_async(gradient, op=rabit.Sum, name="gradient")

    def update(self) -> None:
        self.state.weights += self._handle.result()

    def weights(self) -> Any:
        return self.state.weights


class TorchWork:
    """A DistributedOptimizer, a learning-rate schedule and a DataLoader, as howto/elastic.md has them."""

    def __init__(self, kind: str) -> None:
        import torch

        import rabit_torch

        self._model, inner = table_and_optimizer(kind)
        self._optimizer = rabit_torch.DistributedOptimizer(
            inner, self._model.named_parameters(), op=rabit_torch.Sum
        )
        self._takes_closure = kind == "LBFGS"
        self._number = 0
        sampler = rabit_torch.elastic.ElasticSampler(range(SAMPLES), seed=3)
        self._loader = torch.utils.data.DataLoader(range(SAMPLES), batch_size=BATCH, sampler=sampler)
        self.state = rabit_torch.elastic.TorchState(
            self._model, self._optimizer, step=0, sizes=[], seen=[], sampler=sampler, scheduler=schedule_of(inner)
        )

    def batches(self) -> Iterator[list[int]]:
        return (rows.tolist() for rows in self._loader)

    def send(self, number: int) -> None:
        self._number = number
        if not self._takes_closure:
            self._backward()

    def update(self) -> None:
        self._optimizer.step(self._backward if self._takes_closure else None)
        self.state.scheduler.step()

    def weights(self) -> Any:
        return self._model.weight.detach().numpy()

    def _backward(self) -> Any:
        return backward(self._model, self._optimizer, self._number)


def table_and_optimizer(kind: str) -> tuple[Any, Any]:
    """A table of parameters, equal on all ranks, and the optimizer of torch.optim of this name."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Embedding(8, 3, sparse=kind == "SparseAdam")
    options = {"momentum": 0.9} if kind == "SGD" else {}
    return model, getattr(torch.optim, kind)(model.parameters(), lr=0.01, **options)


def schedule_of(optimizer: Any) -> Any:
    import torch

    return torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.5)


def backward(model: Any, optimizer: Any, number: int) -> Any:
    """Every element of the gradient is `number`, and the loss is."""
    import torch

    optimizer.zero_grad()
    (model(torch.arange(8)) * number).sum().backward()
    return torch.tensor(float(number))


def weights_of(kind: str, sizes: Sequence[int]) -> Any:
    """What the weights come to when each step has so many ranks."""
    sums = [(step + 1) * (size * (size + 1) // 2) for step, size in enumerate(sizes)]
    if not kind:
        return np.full(20_000, float(sum(sums)))
    model, optimizer = table_and_optimizer(kind)
    schedule = schedule_of(optimizer)
    for number in sums:
        if kind == "LBFGS":
            optimizer.step(lambda number=number: backward(model, optimizer, number))
        else:
            backward(model, optimizer, number)
            optimizer.step()
        schedule.step()
    return model.weight.detach().numpy()
