"""DistributedTrainer: Gluon's Trainer, on gradients summed over the ranks."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Mapping
from typing import Any, Literal

import rabit
from rabit import InvalidArgument, ProcessSet, global_process_set
from rabit.framework import (
    Exchange,
    Meeting,
    Strategy,
    check_process_set,
    follow_default_engine,
    refuse_in_elastic_jobs,
)
from rabit_mxnet.compression import Compression, choose
from rabit_mxnet.library import mxnet_setting
from rabit_mxnet.loaded import mx
from rabit_mxnet.method import ArraySlot, Method, chosen_strategy, meet_if_due
from rabit_mxnet.ops import reduce_gradients
from rabit_mxnet.optimizer import DistributedOptimizer, group_sizes, next_prefix
from rabit_mxnet.sharding import DividedTrainer, chosen_stage


class DistributedTrainer(DividedTrainer):
    """A Gluon Trainer whose `allreduce_grads` sums over the ranks; `step` then takes the mean.

    params: ParameterDict, or a dict or list of Parameters; the same on every rank.
    step(batch_size): batch_size is that of one rank.
    compression, compression_params: Compression.fp16 or {"type": "fp16"}; one of the two.
    gradient_predivide_factor: gradients are divided by it before the sum and multiplied after.
    prefix: put before the names of gradients; each trainer has its own.  None: trainers are numbered in the
    order in which they are made, which must be the same on all ranks.
    num_groups: 0, or into how many groups the gradients are divided that travel together.
    strategy: a method of `rabit.strategies`, or a text such as "diloco:every=100", in place of the mean
    in every step; `step` blocks then.  None: RABIT_STRATEGY, or the mean.
    shard: "optimizer" divides the optimizer's state among the ranks, each of which updates its slices of the
    parameters (ZeRO stage 1); "gradients" also frees the gradients that have been sent (stage 2), so that they are
    readable between `backward` and `step` alone.  The bits are those of None.  None: RABIT_SHARD, or nothing.
    """

    def __init__(
        self,
        params: Any,
        optimizer: Any,
        optimizer_params: Mapping[str, Any] | None = None,
        compression: Any = Compression.none,
        gradient_predivide_factor: float = 1.0,
        prefix: str | None = None,
        num_groups: int = 0,
        process_set: ProcessSet = global_process_set,
        *,
        compression_params: Mapping[str, Any] | None = None,
        strategy: Strategy | Exchange | str | None = None,
        shard: Literal["optimizer", "gradients"] | None = None,
    ) -> None:
        if prefix is not None and not isinstance(prefix, str):
            raise InvalidArgument(f"prefix is {prefix!r}, and a string is expected. Leave it out.")
        if isinstance(optimizer, DistributedOptimizer):
            warnings.warn(
                "DistributedTrainer sums gradients itself; the DistributedOptimizer around its "
                "optimizer has been taken off",
                stacklevel=2,
            )
            optimizer = optimizer.unwrap()
        # Gluon sorts by name, where layer 10 comes before layer 2; what was given comes in the order
        # of the forward pass.
        given = params if isinstance(params, (list, tuple)) else params.values()
        self._places = {each.name: place for place, each in enumerate(given)}
        if isinstance(params, (list, tuple)):
            params = sorted(params, key=lambda each: str(each.name))
        self._codec, self._compressor = choose(compression, compression_params)
        group_sizes(0, num_groups)
        check_process_set(process_set)
        super().__init__(params, optimizer, optimizer_params=optimizer_params, kvstore=None)
        if num_groups == 0 and mxnet_setting("MXNET_OPTIMIZER_AGGREGATION_SIZE") is None:
            # One update of several parameters would make each of them wait for all gradients.
            self._optimizer.aggregate_num = min(self._optimizer.aggregate_num, 1)
        has_other = gradient_predivide_factor != 1.0 or num_groups != 0
        has_other = has_other or bool(self._codec.spec) or self._compressor is not None
        chosen = chosen_strategy(strategy, self._optimizer, has_other)
        self._stage = chosen_stage(shard, has_other=has_other or chosen is not None)
        self._method = None
        if chosen is not None and process_set.included():
            self._method = Method(chosen, process_set)
        refuse_in_elastic_jobs(
            "DistributedTrainer",
            {
                "strategy": chosen is not None,
                "shard": bool(self._stage),
                "a process set": process_set is not global_process_set,
            },
            "Use the mean of the gradients of all ranks",
        )
        self._meeting = Meeting(rabit.default_engine(), process_set, chosen)
        self._shares = process_set.size()  # that the sum of gradients has
        if chosen is None:
            self._scale *= gradient_predivide_factor / self._shares
        follow_default_engine(self._start_over)
        self._gradient_predivide_factor = gradient_predivide_factor
        self._prefix = prefix or ""
        self._names = self._next_names()
        self._num_groups = num_groups
        self._process_set = process_set

    def step(self, batch_size: int, ignore_stale_grad: bool = False) -> None:
        """Sums the gradients over the ranks and updates the parameters.  Does not block."""
        super().step(batch_size, ignore_stale_grad)
        if self._method is not None:
            self._method.after_step()
        engine = rabit.default_engine()
        if engine.is_tuning:  # The step is only queued, and its time is what counts.
            mx.nd.waitall()
        engine.end_step(self._process_set.size() == engine.size)

    def update(self, batch_size: int, ignore_stale_grad: bool = False) -> None:
        """Updates the parameters after `allreduce_grads`, which took the mean."""
        super().update(batch_size, ignore_stale_grad)
        if self._method is not None:
            self._method.after_step()

    def strategy_state_dict(self) -> dict[str, Any]:
        """The state of the strategy as NumPy arrays; between steps, on all ranks alike.  Blocks.

        "replicated" is equal on all ranks, "local" is this rank's own: each rank saves its own.
        """
        return self._needed_method().state_dict()

    def load_strategy_state_dict(self, saved: dict[str, Any]) -> None:
        """Continues from what `strategy_state_dict` gave; the parameters must have their shapes."""
        method = self._needed_method()
        self._slots()
        method.load_state_dict(saved)

    def _start_over(self) -> None:
        """The ranks of an elastic job have changed."""
        self._meeting = Meeting(rabit.default_engine(), self._process_set, None)
        self._names = self._next_names()
        before, self._shares = self._shares, self._process_set.size()
        self._scale *= before / self._shares

    def _next_names(self) -> str:
        return f"gradient.{self._prefix}" if self._prefix else next_prefix()

    def _needed_method(self) -> Method:
        if self._method is None:
            raise InvalidArgument(
                "this trainer has no strategy. Give one to DistributedTrainer(strategy=...)."
            )
        return self._method

    def _slots(self) -> dict[int, ArraySlot]:
        """By index of the parameter, in the order of the forward pass: methods take neighbours together."""
        method, count = self._needed_method(), len(self._places)
        places = {i: self._places[param.name] for i, param in enumerate(self._params)}
        return {
            i: method.slot(
                str(each.name),
                each.data(),
                count - places[i],
                self._rate,
                functools.partial(_is_frozen, each),
            )
            for i, each in sorted(enumerate(self._params), key=lambda pair: places[pair[0]])
            if each.grad_req != "null"
        }

    def _rate(self) -> float:
        return float(self._optimizer.learning_rate)

    def _allreduce_grads(self) -> None:
        """Gluon calls this from `step` and `allreduce_grads`."""
        slots = {} if self._method is None else self._slots()  # First: their shapes are compared.
        if self._process_set.included():
            meet_if_due(self._meeting, self._method)
        if self._method is not None:
            self._method.exchange(list(slots.values()), [self._gradient(i) for i in slots])
            self._method.before_step()
            return
        if self._is_divided:
            self._made_shards().scatter(self._trained())
            return
        if self._process_set.size() == 1 or not self._process_set.included():
            return
        indices = self._trained()
        first = 0
        for size in group_sizes(len(indices), self._num_groups):
            self._reduce(indices[first : first + size])
            first += size

    def _reduce(self, indices: list[int]) -> None:
        gradients = [self._gradient(index) for index in indices]
        sent, undo = gradients, [None] * len(gradients)
        if self._compressor is not None:
            pairs = [self._compressor.compress(gradient) for gradient in gradients]
            sent, undo = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        reduce_gradients(
            sent,
            [f"{self._names}{index}" for index in indices],
            -min(self._places[self._params[index].name] for index in indices),
            rabit.Sum,
            (1.0 / self._gradient_predivide_factor, 1.0),
            self._process_set,
            self._codec,
        )
        if self._compressor is not None:
            for gradient, each, context in zip(gradients, sent, undo, strict=True):
                gradient[:] = self._compressor.decompress(each, context)

    def _gradient(self, index: int) -> Any:
        parameter = self._params[index]
        gradients = parameter.list_grad()
        if len(gradients) > 1:
            raise rabit.Unsupported(
                f"parameter '{parameter.name}' has gradients on {len(gradients)} contexts, and a "
                "rank works on one. Start one rank for each context."
            )
        return gradients[0]


def _is_frozen(parameter: Any) -> bool:
    return bool(parameter.grad_req == "null")
