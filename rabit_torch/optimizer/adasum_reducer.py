"""DistributedOptimizer(op=Adasum): ranks step by themselves, and combine their steps adaptively."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from rabit import InvalidArgument, ProcessSet, default_engine
from rabit.framework import Meeting
from rabit_torch.compression import by_hand
from rabit_torch.ops.adasum import Adasum
from rabit_torch.ops.collectives import grouped_allreduce_async
from rabit_torch.optimizer.mode import Overlap
from rabit_torch.tensors import check


class AdasumReducer:
    """Stands where GradientReducer does, and leaves gradients alone: steps are what is combined.

    The gradients of a rank are its own, so there is no crossing, no strategy and no overlap.

    Source: Maleki et al., "Scaling Distributed Training with Adaptive Summation", 2021.
    """

    combines_steps = True

    def __init__(
        self,
        names: dict[torch.Tensor, str],
        *,
        compression: Any,
        backward_passes: int,
        process_set: ProcessSet,
    ) -> None:
        self.crossing = None
        self.method = None
        self.overlap: Overlap = "none"
        self._prefix = default_engine().next_name("adasum")
        self._names = dict(names)
        self._compression = by_hand(compression, "DistributedOptimizer(op=Adasum)")
        self.process_set = process_set
        self._is_alone = process_set.size() == 1 or not process_set.included()
        self._meeting = Meeting(default_engine(), process_set, None)
        self.backward_passes = backward_passes
        self.set_backward_passes(backward_passes)
        for parameter, name in names.items():
            check(parameter, name)

    @property
    def names(self) -> dict[torch.Tensor, str]:
        """The name of every parameter."""
        return dict(self._names)

    @property
    def in_flight(self) -> dict[torch.Tensor, Any]:
        """Nothing: the steps are combined while step() runs."""
        return {}

    @property
    def passes_left(self) -> dict[torch.Tensor, int]:
        """Backward passes before step(), for every parameter."""
        return dict.fromkeys(self._names, self.backward_passes)

    def set_backward_passes(self, passes: int) -> None:
        """Sets how many backward passes the caller makes before each step; at least 1."""
        if not isinstance(passes, int) or passes < 1:
            raise InvalidArgument(
                f"backward_passes_per_step is {passes!r}; it must be an integer of at least 1"
            )
        self.backward_passes = passes

    def add_parameters(self, parameters: Any) -> None:
        """Takes parameters that were added to the optimizer later on."""
        for parameter in parameters:
            self._names.setdefault(parameter, f"parameter.{len(self._names)}")

    def step(self, local_step: Callable[[], Any]) -> Any:
        """Takes this rank's step, and replaces it by the adaptive sum of all ranks' steps.  Blocks."""
        parameters = [p for p in self._names if p.requires_grad]
        before = [p.detach().clone() for p in parameters]
        result = local_step()
        if self._is_alone or not parameters:
            return result
        self._meeting.meet()
        wires, contexts = [], []
        for parameter, start in zip(parameters, before, strict=True):
            wire, context = self._compression.compress(parameter.detach() - start)
            wires.append(wire)
            contexts.append(context)
        started = grouped_allreduce_async(
            wires, None, self._prefix, Adasum, process_set=self.process_set
        )
        sums = started.wait()
        for parameter, start, total, context in zip(
            parameters, before, sums, contexts, strict=True
        ):
            parameter.detach().copy_(start + self._compression.decompress(total, context))
        return result

    def set_overlap(self, overlap: Overlap) -> None:
        """There is "none" alone, and others are refused before."""

    def before_step(self) -> None:
        """The gradients are this rank's own."""

    def synchronize(self) -> None:
        """Nothing is in flight between steps."""

    def discard(self) -> None:
        """Nothing is in flight between steps."""

    def step_done(self) -> None:
        """Counts a training step."""
        engine = default_engine()
        engine.end_step(self.process_set.size() == engine.size)

    def next_step(self) -> None:
        """Nothing is kept from one step to the next."""

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Backward passes send nothing anyhow."""
        yield
