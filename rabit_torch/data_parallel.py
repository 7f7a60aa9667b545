"""BytePS's DistributedDataParallel: a module whose gradients are reduced in the backward pass."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch

from rabit import InvalidArgument, default_engine
from rabit_torch.compression import Compression
from rabit_torch.ops.collectives import broadcast_
from rabit_torch.optimizer.reducer import GradientReducer
from rabit_torch.optimizer.requests import Reduction
from rabit_torch.parameter_state import ParameterState
from rabit_torch.state import broadcast_parameters

__all__ = ["DistributedDataParallel"]


class DistributedDataParallel(torch.nn.Module):
    """`module`, with the same parameters on all ranks and gradients that are means over the ranks.

    Gradients travel while `backward()` runs and are reduced when it returns; the optimizer is a plain
    one of torch.  For torch's own class, with buckets and static graphs, see `ddp_hook`.

    module: its parameters and buffers become those of rank 0 now.
    device_ids: None, or the one device of the module, as with BytePS; the module stays where it is.
    broadcast_buffers: every forward pass in training mode starts with the buffers of rank 0.
    compression: as of DistributedOptimizer.
    Blocks until every rank has made one.  Raises Mismatch if the ranks' models differ.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        device_ids: Sequence[Any] | None = None,
        broadcast_buffers: bool = True,
        compression: Any = Compression.none,
    ) -> None:
        super().__init__()
        if device_ids is not None and len(device_ids) != 1:
            raise InvalidArgument(
                f"DistributedDataParallel: device_ids is {list(device_ids)}; a rank has one device. Give that "
                "alone, or leave device_ids out"
            )
        if default_engine().config.min_np:
            raise InvalidArgument(
                f"DistributedDataParallel in an elastic job (--min-np {default_engine().config.min_np}): it "
                "does not follow the ranks. Use DistributedOptimizer"
            )
        self.module = module
        self.broadcast_buffers = broadcast_buffers
        broadcast_parameters(module.state_dict(), root_rank=0)
        self._trained: list[ParameterState] = []  # in the last forward pass that recorded a graph
        self._buffers_name = default_engine().next_name("buffers")
        # Frozen ones too: they may be thawed.
        names: dict[torch.Tensor, str] = {each: name for name, each in module.named_parameters()}
        if not any(parameter.requires_grad for parameter in names):
            raise InvalidArgument(
                "DistributedDataParallel: no parameter of the module is trained, so there is nothing to "
                "reduce. Use the module itself"
            )
        self._reducer = GradientReducer(
            names,
            optimizer=torch.optim.SGD(list(names), lr=0.0),  # Only what crosses steps asks for it.
            reduction=Reduction(compression=compression),
        )

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """The result of `module`, whose gradients the next backward pass reduces."""
        if torch.is_grad_enabled():
            self._end_step()
        if self.training and self.broadcast_buffers:
            self._broadcast_buffers()
        return self.module(*inputs, **kwargs)

    def synchronize(self) -> None:
        """Reduces gradients of parameters that took no part in the backward pass.  Blocks.

        For models of which ranks may skip parts: on every rank after `backward()`.
        """
        self._reducer.synchronize()

    def no_sync(self) -> contextlib.AbstractContextManager[None]:
        """A context in which backward passes add up gradients locally and send nothing."""
        return self._reducer.paused()

    def _broadcast_buffers(self) -> None:
        """The bytes of all buffers of a device travel as one tensor, whatever their types."""
        of_device: dict[torch.device, list[torch.Tensor]] = {}
        for buffer in self.module.buffers():
            of_device.setdefault(buffer.device, []).append(buffer.detach())
        for number, buffers in enumerate(of_device.values()):
            parts = [buffer.contiguous().reshape(-1).view(torch.uint8) for buffer in buffers]
            joined = torch.cat(parts)
            broadcast_(joined, 0, f"{self._buffers_name}.{number}")
            of_root = torch.split(joined, [len(part) for part in parts])
            for buffer, part in zip(buffers, of_root, strict=True):
                buffer.copy_(part.clone().view(buffer.dtype).reshape(buffer.shape))

    def _end_step(self) -> None:
        """The gradients of the last backward pass belong to the past, if there has been one."""
        trained = self._trained
        self._trained = [state for state in self._reducer.states if state.parameter.requires_grad]
        sent = [state for state in self._reducer.states if state.is_sent]
        if not sent:
            return
        missing = [each.name for each in trained if not each.is_sent]
        if missing:
            raise InvalidArgument(
                f"DistributedDataParallel on rank {default_engine().rank}: {', '.join(missing[:5])} took no part in "
                "the last backward pass, and other ranks may wait for their gradients. Call synchronize() of the "
                "module after backward()"
            )
        self._reducer.step_done()
