"""Steps that wait for no other rank: parameters live on the summation servers, and optimizers push differences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

import rabit
from rabit import InvalidArgument, ServerParameters, default_engine
from rabit.framework import finite_mode

__all__ = ["make_asynchronous"]

_BITS = {torch.float32: torch.int32, torch.float64: torch.int64}


def make_asynchronous(
    optimizer: torch.optim.Optimizer,
    names: Mapping[torch.Tensor, str],
    staleness: int,
    changed: list[str],
) -> torch.optim.Optimizer:
    """`optimizer` itself, whose steps also go to the servers, and bring what the other ranks have done.

    staleness: 0: RABIT_PS_STALENESS.  changed: arguments that say how gradients are reduced.
    """
    config = default_engine().config
    settings = {
        "RABIT_STRATEGY": config.strategy,
        "RABIT_CHECK_FINITE": finite_mode(None, config.check_finite) != "off",
        "RABIT_CHECK_REPLICAS": config.check_replicas,
    }
    changed = [*changed, *(name for name, value in settings.items() if value)]
    if changed:
        raise InvalidArgument(
            f"DistributedOptimizer with asynchronous steps on rank {rabit.rank()} takes no {', '.join(changed)}: "
            "gradients are not reduced there, each rank takes its own step and the servers add them up. Leave "
            "these out, or RABIT_PS_ASYNC and staleness"
        )
    if getattr(optimizer, "_rabit_is_asynchronous", False):
        raise InvalidArgument(
            f"{type(optimizer).__name__} on rank {rabit.rank()} is wrapped by DistributedOptimizer already, and would "
            "push each step twice. Wrap it once"
        )
    if not config.ps_async:
        raise InvalidArgument(
            f"staleness is {staleness!r}, and the servers of this job keep no parameters: start it with "
            "RABIT_PS_ASYNC=1 and 'rabitrun -s 2'. Without servers overlap='next-forward' hides communication "
            "without stale gradients, and strategy='async' does not wait for slow ranks"
        )
    _Steps(optimizer, names, staleness)
    optimizer._rabit_is_asynchronous = True  # type: ignore[attr-defined]
    return optimizer


class _Steps:
    """The hooks of one optimizer, which keeps them.  Parameters of one type travel as one array."""

    def __init__(
        self, optimizer: torch.optim.Optimizer, names: Mapping[torch.Tensor, str], staleness: int
    ) -> None:
        self._parameters: dict[torch.dtype, list[torch.Tensor]] = {}
        for parameter in names:
            if parameter.dtype not in (torch.float32, torch.float64):
                raise InvalidArgument(
                    f"asynchronous steps with parameters of {parameter.dtype}: small differences would be lost "
                    "where they are added up. Keep them in float32"
                )
            self._parameters.setdefault(parameter.dtype, []).append(parameter)
        self._names = dict(names)
        self._before: dict[torch.dtype, torch.Tensor] = {}  # what the servers have given last
        self._shared: dict[torch.dtype, ServerParameters] = {}
        for dtype, flat in self._flat().items():
            name = ", ".join(names[each] for each in self._parameters[dtype])
            self._shared[dtype] = ServerParameters(
                flat.numpy(), name=name, staleness=staleness or None
            )
            self._assign(dtype, flat)
        optimizer.register_step_pre_hook(self._begin)
        optimizer.register_step_post_hook(self._end)

    def _flat(self) -> dict[torch.dtype, torch.Tensor]:
        return {
            dtype: torch.cat([parameter.detach().cpu().reshape(-1) for parameter in parameters])
            for dtype, parameters in self._parameters.items()
        }

    def _assign(self, dtype: torch.dtype, flat: torch.Tensor) -> None:
        self._before[dtype] = flat
        begin = 0
        with torch.no_grad():
            for each in self._parameters[dtype]:
                each.copy_(flat[begin : begin + each.numel()].reshape(each.shape))
                begin += each.numel()

    def _begin(self, *_: Any) -> None:
        """Raises InvalidArgument where parameters are no longer what the servers have given.

        Every rank would add its own change to them, as many times as there are ranks that load or clamp.
        """
        for dtype, flat in self._flat().items():
            bits = _BITS[dtype]
            if not torch.equal(flat.view(bits), self._before[dtype].view(bits)):
                raise InvalidArgument(
                    f"parameter '{self._first_changed(dtype)}' on rank {rabit.rank()} was changed outside of step(), "
                    "and with asynchronous steps the servers keep the parameters: the change would be lost. Load a "
                    "checkpoint, or broadcast, before you make the DistributedOptimizer (pass the Checkpoint the "
                    "optimizer that is not wrapped yet); clamp gradients instead of parameters"
                )

    def _first_changed(self, dtype: torch.dtype) -> str:
        begin = 0
        for each in self._parameters[dtype]:
            given = self._before[dtype][begin : begin + each.numel()].reshape(each.shape)
            if not torch.equal(each.detach().cpu(), given):
                return self._names[each]
            begin += each.numel()
        return self._names[self._parameters[dtype][0]]

    def _end(self, *_: Any) -> None:
        for dtype, flat in self._flat().items():
            delta = flat.sub_(self._before[dtype])
            self._shared[dtype].add(delta.numpy())
            self._assign(dtype, delta)  # It is what the servers keep now.
        for each in self._shared.values():
            each.end_step()
        default_engine().end_step(is_of_all=False)  # Each rank takes steps of its own.
