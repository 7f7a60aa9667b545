"""Guards of a DistributedOptimizer: hooks that look at gradients, and the check of replicas."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch

from rabit import InvalidArgument, ProcessSet, default_engine
from rabit.framework import FiniteGuard, ReplicaCheck, Strategy, finite_mode
from rabit_torch.optimizer.hooks import GradientHooks

__all__ = ["Guards", "make_guards"]


class Guards:
    """Called in turns by the hooks of gradients and by the optimizer's step."""

    def __init__(
        self,
        names: Mapping[torch.Tensor, str],
        finite: FiniteGuard | None,
        replicas: ReplicaCheck | None,
    ) -> None:
        """To be made before the reducer, whose hooks change gradients: those of a tensor run in order."""
        self._names = dict(names)
        self._finite = finite
        self._replicas = replicas
        self._count = 0
        self._hooks = GradientHooks(self)
        self.watch(names)

    def watch(self, parameters: Iterable[torch.Tensor]) -> None:
        """Takes further parameters; as with the first, before the reducer has them."""
        for parameter in parameters:
            if self._finite is not None:
                self._hooks.add(parameter, _hook(weakref.ref(self), self._count))
            self._count += 1

    def take_names(self, names: Mapping[torch.Tensor, str]) -> None:
        """The names of all parameters, when some have come."""
        self._names = dict(names)

    def look(self, number: int, parameter: torch.Tensor) -> None:
        """The gradient of a parameter is complete on this rank."""
        gradient = parameter.grad
        if self._finite is None or gradient is None or not self._finite.wants(number):
            return
        dense = gradient.coalesce().values() if gradient.is_sparse else gradient
        # A sum is finite where all elements are, unless it overflows: then the elements tell.
        if bool(torch.isfinite(dense.sum())):
            return
        bad = torch.nonzero(~torch.isfinite(dense))
        if len(bad):
            index = tuple(bad[0].tolist())
            self._finite.note(self._names[parameter], index, str(dense[index].item()))

    def before_step(self) -> None:
        """Raises IntegrityError on all ranks if one has seen a gradient that is not finite."""
        if self._finite is not None:
            self._finite.check()

    def after_step(self, flush: Callable[[], None]) -> None:
        """Raises IntegrityError on all ranks if it is time to compare and parameters differ."""
        if self._replicas is not None:
            self._replicas.step(lambda: self._memory(flush))

    def forget(self) -> None:
        """The gradients are dropped."""
        if self._finite is not None:
            self._finite.forget()

    def _memory(self, flush: Callable[[], None]) -> Iterator[tuple[str, Any]]:
        flush()
        for parameter, name in self._names.items():
            flat = parameter.detach().contiguous().view(-1).cpu()
            yield name, flat.view(torch.uint8).numpy() if flat.numel() else b""


def make_guards(
    names: Mapping[torch.Tensor, str],
    check_finite: bool | str | None,
    check_replicas: int | None,
    strategy: Strategy | None,
    process_set: ProcessSet,
) -> Guards | None:
    """The guards that arguments or settings ask for; None: nothing is checked, and nothing costs.

    Raises InvalidArgument for other arguments, or a strategy with which replicas differ.
    """
    engine = default_engine()
    mode = finite_mode(check_finite, engine.config.check_finite)
    every = engine.config.check_replicas if check_replicas is None else check_replicas
    if (mode == "off" and every == 0) or not process_set.included():
        return None
    if every and strategy is not None and strategy.uses_step:
        raise InvalidArgument(
            f"check_replicas={every} with strategy {type(strategy).__name__}, which lets parameters "
            "differ between ranks. Leave check_replicas (RABIT_CHECK_REPLICAS) out"
        )
    name = engine.next_name("guards")
    return Guards(
        names,
        None if mode == "off" else FiniteGuard(mode, name, engine, process_set),
        None if every == 0 else ReplicaCheck(every, name, engine, process_set),
    )


def _hook(guards: Callable[[], Guards | None], number: int) -> Callable[[torch.Tensor], None]:
    """guards: a weak reference; the parameter may live longer."""

    def look(parameter: torch.Tensor) -> None:
        alive = guards()
        if alive is not None:
            alive.look(number, parameter)

    disable: Any = torch.compiler.disable  # Compiled autograd must not trace into it.
    opaque: Callable[[torch.Tensor], None] = disable(look)
    return opaque
