"""WrappedMixin: what makes the wrapper look like the optimizer that it wraps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import rabit
from rabit import InvalidArgument
from rabit.framework import Strategy, gives_steps
from rabit_torch.optimizer.adasum_reducer import AdasumReducer
from rabit_torch.optimizer.method import Method, own_copy
from rabit_torch.optimizer.reducer import GradientReducer
from rabit_torch.tensors import is_by_name

__all__ = ["WrappedMixin"]


class WrappedMixin:
    """The wrapped optimizer's state and attributes, and names that scripts know from Horovod."""

    _rabit_inner: torch.optim.Optimizer
    _rabit_reducer: GradientReducer | AdasumReducer
    _rabit_make_reducer: Callable[..., GradientReducer] | None
    _rabit_fresh_strategy: Strategy | None  # of an elastic job: as it was given
    _rabit_synchronized: bool

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """What GradScaler.step() asks before it steps.  False: it unscales by itself.

        True: it sets attributes of the optimizer that it is given, and calls step(), which refuses it by them.
        """
        method = self._rabit_reducer.method
        return method is not None and gives_steps(method.strategy)

    def _rabit_refuse_scaler(self) -> None:
        """GradScaler has called step() of a strategy that makes steps out of gradients.  Raises InvalidArgument."""
        del self.__dict__["found_inf"], self.__dict__["grad_scale"]
        strategy = self._rabit_method().strategy
        raise InvalidArgument(
            f"strategy {strategy.spec or type(strategy).__name__} on rank {rabit.rank()} makes steps out of "
            "gradients, and GradScaler would divide them by its scale, as if they were gradients. Leave the "
            "scaler out (bfloat16 needs none), or take a strategy that averages gradients"
        )

    def _rabit_method(self) -> Method:
        method = self._rabit_reducer.method
        if method is None:
            raise InvalidArgument(
                "this optimizer has no strategy; give one to DistributedOptimizer(strategy=...)"
            )
        return method

    # The wrapped optimizer owns the state; the wrapper shows it, so nothing can drift apart.
    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self._rabit_inner.param_groups

    @param_groups.setter
    def param_groups(self, value: list[dict[str, Any]]) -> None:
        self._rabit_inner.param_groups = value

    @property
    def state(self) -> Any:
        self.flush()
        return self._rabit_inner.state

    @state.setter
    def state(self, value: Any) -> None:
        self._rabit_inner.state = value

    @property
    def defaults(self) -> dict[str, Any]:
        return self._rabit_inner.defaults

    @defaults.setter
    def defaults(self, value: dict[str, Any]) -> None:
        self._rabit_inner.defaults = value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_rabit_"):
            raise AttributeError(name)
        return getattr(self._rabit_inner, name)

    def __repr__(self) -> str:
        return f"Distributed{self._rabit_inner!r}"

    def __reduce__(self) -> Any:
        raise InvalidArgument(
            "a DistributedOptimizer holds hooks and handles of this process and cannot be copied or "
            "pickled; save optimizer.state_dict() instead"
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self.__reduce__()

    # Names that are private in Horovod and that scripts use all the same.
    @property
    def _parameter_names(self) -> dict[torch.Tensor, str]:
        return self._rabit_reducer.names

    @property
    def _requires_update(self) -> set[torch.Tensor]:
        return {p for p in self._rabit_reducer.names if p.requires_grad}

    @property
    def _handles(self) -> dict[torch.Tensor, Any]:
        return self._rabit_reducer.in_flight

    @property
    def _allreduce_delay(self) -> dict[torch.Tensor, int]:
        return self._rabit_reducer.passes_left

    def flush(self) -> None:
        """Waits until every update of the steps so far is done.  Returns at once if none waits.

        Needed before code outside of Python reads parameters; everything else waits by itself.
        """
        crossing = self._rabit_reducer.crossing
        if crossing is not None:
            crossing.flush()

    def state_dict(self) -> dict[str, Any]:
        self.flush()
        return self._rabit_inner.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes what `state_dict` gave, or that of an optimizer with shard=..., whose parts the ranks exchange."""
        self.flush()
        if is_by_name(state_dict):
            from rabit_torch.sharding.forms import numbered  # loads all of sharding

            reducer = self._rabit_reducer
            state_dict = numbered(state_dict, self._rabit_inner, reducer.names, reducer.process_set)
        self._rabit_inner.load_state_dict(state_dict)

    def _rabit_start_over(self) -> None:
        """The ranks have changed, and the engine: gradients go over the new one from now on.

        What is not reduced yet belongs to a step that is repeated.
        """
        old: Any = self._rabit_reducer
        if self._rabit_make_reducer is None:  # elastic jobs have no Adasum
            return
        old.arrivals.stop_listening()
        self._rabit_inner.zero_grad(set_to_none=True)
        new = self._rabit_make_reducer(old.names, strategy=own_copy(self._rabit_fresh_strategy))
        new.set_backward_passes(old.backward_passes)
        new.set_overlap(old.overlap)
        self._rabit_reducer = new
        self._rabit_synchronized = False
