"""FsdpMethod: a gradient method in place of the reduce-scatter of torch's FSDP2."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

import rabit
from rabit import InvalidArgument, ProcessSet, Unsupported, global_process_set
from rabit.framework import Array, Exchange, Meeting, Pipeline, Strategy, as_strategy
from rabit_torch.torch_slot import TorchSlot, with_arrays, with_tensors

__all__ = ["FsdpMethod"]

_SLOTS = "slots"  # where a saved state says of which buffers it is


class FsdpMethod:
    """Exchanges the gradients of a sharded model by a method of `rabit.strategies`.

    method: an Exchange, a Strategy that works on gradients alone, or a text.
    model: after `fully_shard`; every FSDP module in it gets this in place of its reduce-scatter.
    optimizer: the one that steps, whose learning rate error feedback follows; its groups must then have one
    rate.  None: residuals stay in the unit of gradients.
    process_set: the ranks that the parameters are sharded over.
    One for each model.  What a method sees as a parameter is what FSDP sends for a module: its gradients in one
    row, in the order in which the ranks get their parts, so methods for matrices take it for a vector.  State is
    kept for each module on every rank, as large as its gradients before they are sharded, and for each set of its
    parameters that had gradients.  Every backward pass that FSDP exchanges counts as a step.  Each rank gets all
    of a result and keeps its part: a method sends its encoding twice as far as a reduce-scatter sends the gradient.
    Raises Unsupported for a torch whose modules have no set_custom_reduce_scatter.
    """

    def __init__(
        self,
        method: Strategy | Exchange | str,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        strategy = as_strategy(method)
        if strategy.uses_step:
            raise InvalidArgument(
                f"{type(strategy).__name__} works on parameters in step(), of which FSDP does not tell. Use "
                "rabit_torch.DistributedOptimizer(strategy=...) with whole parameters"
            )
        engine = rabit.default_engine()
        name = engine.next_name("fsdp_method")
        self._optimizer = optimizer
        self._process_set = process_set
        self._slot_of: dict[str, _Buffer] = {}
        self._seen: set[str] = set()  # of this backward pass
        self._pipeline = Pipeline(strategy, [], engine=engine, process_set=process_set, name=name)
        self._meeting = Meeting(engine, process_set, strategy)
        _put_in_place(self, model)
        engine.before_close(self._pipeline.close, keeps=self._pipeline.ends_together)

    def reduce_scatter(
        self, module: str, output: torch.Tensor, whole: torch.Tensor, group: Any, op: Any
    ) -> None:
        """Gives this rank its part of the mean or sum of `whole`, whose memory it uses.  Blocks."""
        self._check_ranks(module, group)
        is_mean = op == dist.ReduceOp.AVG
        if not is_mean and op != dist.ReduceOp.SUM:
            raise Unsupported(
                f"FSDP module '{module}' on rank {rabit.rank()} reduces by {op}; a gradient method gives means "
                "and sums. Leave set_gradient_divide_factor out, or pass it the number of ranks"
            )
        slot = self._slot(_name(module, whole.numel()), whole.numel(), whole.dtype)
        if slot.name in self._seen:  # This is the next backward pass.
            self._end_step()
        self._pipeline.meet_if_due(self._meeting)
        self._seen.add(slot.name)
        slot.take(whole)
        task = self._pipeline.ready(slot)
        self._pipeline.flush()
        self._pipeline.wait([slot])
        if not task.is_done:
            raise Unsupported(
                f"{type(self._pipeline.strategy).__name__} waits for the gradients of all modules, while FSDP on "
                f"rank {rabit.rank()} waits for those of '{module}'. Take a method that exchanges each by itself"
            )
        slot.write_back()
        slot.forget()
        count = output.numel()
        output.copy_(whole.narrow(0, self._process_set.rank() * count, count))
        if not is_mean:
            output.mul_(self._process_set.size())

    def state_dict(self) -> dict[str, Any]:
        """The state of the method, between steps, on all ranks alike; "local" is each rank's own."""
        slots = {name: (each.count, each.element) for name, each in self._slot_of.items()}
        return {_SLOTS: slots, **with_tensors(self._pipeline.state_dict())}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Continues from what `state_dict` gave."""
        for name, (count, dtype) in saved.get(_SLOTS, {}).items():
            self._slot(name, count, dtype)
        self._pipeline.load_state_dict(with_arrays(saved))

    def _slot(self, name: str, count: int, dtype: torch.dtype) -> _Buffer:
        if name not in self._slot_of:
            self._slot_of[name] = _Buffer(name, count, dtype, self._rate)
            self._pipeline.add([self._slot_of[name]])
        return self._slot_of[name]

    def _end_step(self) -> None:
        self._pipeline.gradients_complete()
        self._pipeline.after_step()
        self._seen.clear()

    def _rate(self) -> float:
        if self._optimizer is None:
            return 1.0
        rates = {float(group["lr"]) for group in self._optimizer.param_groups}
        if len(rates) != 1:
            raise InvalidArgument(
                f"the groups of the optimizer on rank {rabit.rank()} have the learning rates {sorted(rates)}, and "
                "FSDP mixes their gradients. Use one rate, or leave FsdpMethod's optimizer out"
            )
        return rates.pop()

    def _check_ranks(self, module: str, group: Any) -> None:
        mine = (self._process_set.rank(), self._process_set.size())
        theirs = (group.rank(), group.size())
        if mine != theirs:
            raise InvalidArgument(
                f"FSDP module '{module}' is rank {theirs[0]} of {theirs[1]} in its group, and rank {mine[0]} of "
                f"{mine[1]} in the process set of FsdpMethod. Pass the process set with the group's ranks"
            )


class _Buffer(TorchSlot):
    """What FSDP sends for a module, as a method sees it; its parameters are sharded, and not here."""

    def __init__(self, name: str, count: int, dtype: torch.dtype, rate: Any) -> None:
        self.count, self.element = count, dtype
        unseen = torch.empty(count, dtype=dtype, device="meta", requires_grad=True)
        super().__init__(name, unseen, lambda: 0, rate)

    @property
    def value(self) -> Array:
        raise Unsupported(
            f"'{self.name}' on rank {rabit.rank()}: this method looks at parameters, of which FSDP leaves each rank "
            "a part. Take one that works on gradients alone"
        )

    @value.setter
    def value(self, array: Array) -> None:
        _ = self.value


class _ReduceScatter:
    """What FSDP calls for one module; see torch.distributed.fsdp's ReduceScatter."""

    def __init__(self, method: FsdpMethod, module: str) -> None:
        self._method = method
        self._module = module

    def allocate(
        self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: Any,
        op: Any,
        async_op: bool = False,
    ) -> None:
        # None in place of a Work: it has finished.
        self._method.reduce_scatter(self._module, output_tensor, input_tensor, group, op)


def _name(module: str, count: int) -> str:
    """Of a buffer: a parameter without a gradient is not in it, which makes another one."""
    return f"{module or 'model'}:{count}"


def _put_in_place(method: FsdpMethod, model: torch.nn.Module) -> None:
    sharded = [
        (name, module)
        for name, module in model.named_modules()
        if any(each.__name__ == "FSDPModule" for each in type(module).__mro__)
    ]
    if not sharded:
        raise InvalidArgument(
            f"{type(model).__name__} on rank {rabit.rank()} has no FSDP module. Call fully_shard(model) first"
        )
    for name, module in sharded:
        put: Any = getattr(module, "set_custom_reduce_scatter", None)
        if put is None:
            raise Unsupported(
                f"torch {torch.__version__} lets nobody replace FSDP's reduce-scatter. Update torch, or use "
                "DistributedDataParallel with rabit_torch.DdpMethod"
            )
        put(_ReduceScatter(method, name))
