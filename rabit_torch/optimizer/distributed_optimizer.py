"""DistributedOptimizer: any torch optimizer, with gradients reduced over the ranks."""

from __future__ import annotations

import contextlib
import functools
import inspect
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal

import torch

from rabit import (
    Average,
    InvalidArgument,
    ProcessSet,
    ReduceOp,
    default_engine,
    global_process_set,
)
from rabit.framework import (
    Change,
    Exchange,
    Strategy,
    check_process_set,
    follow_default_engine,
    refuse_in_elastic_jobs,
    refuse_strategy_in_elastic_jobs,
)
from rabit_torch.compression import Compression
from rabit_torch.ops.adasum import Adasum
from rabit_torch.ops.arguments import reduce_op
from rabit_torch.optimizer.adasum_reducer import AdasumReducer
from rabit_torch.optimizer.arguments import (
    check_closure,
    check_numbers,
    check_overlap,
    checked_names,
    checked_priorities,
    chosen_overlap,
    group_numbers,
    refuse_with_adasum,
    refuse_wrapped,
    wants_auto,
)
from rabit_torch.optimizer.auto_overlap import AutoOverlap
from rabit_torch.optimizer.clipping import ClippingMixin
from rabit_torch.optimizer.guards import Guards, make_guards
from rabit_torch.optimizer.method import (
    check_strategy_overlap,
    chosen_strategy,
    own_copy,
)
from rabit_torch.optimizer.mode import Overlap
from rabit_torch.optimizer.reducer import GradientReducer
from rabit_torch.optimizer.requests import Reduction
from rabit_torch.optimizer.shared_loss import SharedLoss, shared_loss_of
from rabit_torch.untraced import untraced

_STEP_WARNING = (
    "optimizer.step() called without optimizer.skip_synchronize() context after "
    "optimizer.synchronize(). The gradients are reduced already; if they were changed since "
    "(clipping, unscaling), nothing is lost, but write\n"
    "    optimizer.synchronize()\n    ...\n    with optimizer.skip_synchronize():\n"
    "        optimizer.step()"
)


class _DistributedMixin(ClippingMixin):
    """The methods that a wrapped optimizer gains.  State lives in the optimizer that is wrapped."""

    _rabit_auto: AutoOverlap | None
    _rabit_guards: Guards | None
    _rabit_share_loss: SharedLoss | None

    @untraced
    def synchronize(self) -> None:
        """Waits until every gradient is reduced and in `.grad`, and every update is done.

        Gradients are reduced when `backward()` returns already, except those of parameters that took
        no part in it: these are sent as zeros here, and `.grad` may be None before.  Where other ranks
        have used them, call this before clipping.  Raises what the engine reports (PeerLost, Mismatch, …).
        """
        self._rabit_reducer.synchronize()
        self._rabit_synchronized = True

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """A context in which `step()` does not synchronize, because the caller has."""
        self._rabit_should_synchronize = False
        try:
            yield
        finally:
            self._rabit_should_synchronize = True

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """A context in which backward passes add up gradients locally and send nothing."""
        with self._rabit_reducer.paused():
            yield

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Sets how many backward passes add up before a gradient is sent; at least 1."""
        self._rabit_reducer.set_backward_passes(passes)

    @property
    def backward_passes_per_step(self) -> int:
        return self._rabit_reducer.backward_passes

    @property
    def overlap(self) -> str:
        """What communication overlaps with, as given to DistributedOptimizer."""
        return self._rabit_reducer.overlap

    def set_overlap(self, overlap: Overlap) -> None:
        """Changes the overlap between two steps; on every rank after the same step.

        The step after a change to a mode that crosses waits like a barrier and records the order in
        which the forward pass uses the parameters.
        """
        check_overlap(overlap, self._rabit_inner, self._rabit_reducer)
        self._rabit_stop_auto()
        self._rabit_reducer.set_overlap(overlap)

    @property
    def pending_updates(self) -> list[str]:
        """The names of the parameters whose update of the last step() waits for a read."""
        crossing = self._rabit_reducer.crossing
        names = self._rabit_reducer.names
        return [] if crossing is None else [names[state.parameter] for state in crossing.pending]

    @contextlib.contextmanager
    def flushed(self) -> Iterator[None]:
        """A context in which every update of the steps before it is done."""
        self.flush()
        yield

    def _rabit_traits(self) -> dict[str, Any]:
        """What has to be the same on every rank, for messages."""
        return {
            "backward_passes_per_step": self.backward_passes_per_step,
            "named_parameters": sorted(self._rabit_reducer.names.values()),
        }

    @untraced
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Reduces what is still to reduce, then takes the wrapped optimizer's step.

        With an overlap that crosses, returns before the gradients are there: every parameter is
        updated with the hyper-parameters of this moment when it is read, at the latest.

        A `closure` runs the backward pass inside the step; its gradients are reduced before it
        returns to the wrapped optimizer.  torch.optim.LBFGS gets, and returns, the mean of the losses
        that the closure returns on the ranks, or their sum with op=Sum: it decides by the loss how
        often it evaluates the closure, which is to be equally often on all ranks.
        """
        reducer, guards, inner = self._rabit_reducer, self._rabit_guards, self._rabit_inner
        if "found_inf" in self.__dict__:
            self._rabit_refuse_scaler()
        if closure is not None:
            check_closure(reducer)
            self._rabit_stop_auto()  # It would try modes that take no closure.
            result = reducer.step(functools.partial(self._rabit_step_with, closure))
        else:
            if guards is not None:
                guards.before_step()
            if self._rabit_should_synchronize:
                if self._rabit_synchronized and not reducer.combines_steps:
                    warnings.warn(_STEP_WARNING, stacklevel=2)
                reducer.before_step()
            self._rabit_synchronized = False
            result = reducer.step(inner.step)
        reducer.step_done()
        if guards is not None:
            guards.after_step(self.flush)
        if self._rabit_auto is not None:
            self._rabit_auto.end_step()
        return result

    def _rabit_follow_auto(self, auto: AutoOverlap) -> None:
        self._rabit_auto = auto
        default_engine().reports["overlap"] = auto.report

    def _rabit_stop_auto(self) -> None:
        if self._rabit_auto is not None:
            self._rabit_auto.stop()
            self._rabit_auto = None

    def _rabit_step_with(self, closure: Callable[[], Any]) -> Any:
        if not self._rabit_reducer.combines_steps:
            return self._rabit_inner.step(self._rabit_reduced(closure))
        result = self._rabit_inner.step(closure)
        if (
            self._rabit_guards is not None
        ):  # Here: ranks may evaluate a closure a different number of times.
            self._rabit_guards.before_step()
        return result

    def _rabit_reduced(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """`closure`, whose gradients are checked and reduced before it returns to the wrapped optimizer."""

        def reduced() -> Any:
            self._rabit_reducer.next_step()
            with torch.enable_grad():
                loss = closure()
            if self._rabit_guards is not None:
                self._rabit_guards.before_step()
            self._rabit_reducer.synchronize()
            return loss if self._rabit_share_loss is None else self._rabit_share_loss(loss)

        return reduced

    @untraced
    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """Clears the gradients, as the wrapped optimizer does; takes the same arguments."""
        self._rabit_reducer.discard()
        if self._rabit_guards is not None:
            self._rabit_guards.forget()
        self._rabit_synchronized = False
        self._rabit_inner.zero_grad(*args, **kwargs)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group; its gradients are reduced as well.  Every rank must add the same one."""
        self.flush()
        self._rabit_inner.add_param_group(param_group)
        if (method := self._rabit_reducer.method) is not None:
            try:
                method.check_optimizer()
            except InvalidArgument:
                self._rabit_inner.param_groups.pop()
                raise
        added = self._rabit_inner.param_groups[-1]["params"]
        if self._rabit_guards is not None:
            self._rabit_guards.watch(added)
        self._rabit_reducer.add_parameters(added)
        if self._rabit_guards is not None:
            self._rabit_guards.take_names(self._rabit_reducer.names)

    @property
    def strategy(self) -> Strategy:
        """The strategy that was given; raises InvalidArgument if none was."""
        return self._rabit_method().strategy

    def strategy_state_dict(self) -> dict[str, Any]:
        """The state of the strategy, separate from the optimizer's; between steps, on all ranks alike.

        "replicated" is equal on all ranks, "local" is this rank's own: each rank saves its own.
        """
        self.flush()
        return self._rabit_method().state_dict()

    def load_strategy_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continues from what `strategy_state_dict` gave on this rank: the values are the same to the last bit.

        The steps after it have the bits of a job that was not interrupted with RABIT_DETERMINISTIC=1.

        Refuses what another number of ranks has saved, if each has a part of its own; Checkpoint divides it.
        """
        self._rabit_load_strategy(state_dict, None)

    def _rabit_load_strategy(self, state_dict: Mapping[str, Any], change: Change | None) -> None:
        """change: how the ranks differ from those that saved it; None: not at all."""
        self.flush()
        self._rabit_method().load_state_dict(state_dict, change)


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    op: Any = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
    *,
    row_sparse: bool | Iterable[str] = False,
    overlap: Overlap | Literal["auto"] | None = None,
    priorities: Mapping[str, int] | None = None,
    find_unused_parameters: bool = False,
    strategy: Strategy | Exchange | str | None = None,
    check_finite: bool | Literal["sample"] | None = None,
    check_replicas: int | None = None,
    staleness: int = 0,
    shard: Literal["optimizer", "gradients", "parameters"] | None = None,
    model: torch.nn.Module | None = None,
    offload: str | None = None,
    shard_within: Literal["host"] | int | None = None,
    host_shared: bool | None = None,
    delay_after: int | None = None,
) -> Any:
    """Returns `optimizer` with its gradients reduced over all ranks of `process_set`.

    Gradients travel while `backward()` still runs, and are reduced when it returns, so that
    clipping, loss scaling and reading `p.grad` work as in one process.  Parameters may be frozen and
    thawed between steps, on all ranks alike.  `.grad` of a parameter that this rank has not used may be
    None until `step()`; a rank whose peers have used it calls `synchronize()` before clipping.

    optimizer: any torch optimizer; it keeps its state, and stays usable by itself.
    named_parameters: `model.named_parameters()`; the names appear in errors and timelines.
    compression: Compression.none, .fp16, .bf16, or an object with compress and decompress.
    backward_passes_per_step: passes that add up locally before a gradient is sent; a last window
        with fewer passes is sent at `step()`.
    op: Average, Sum, Min, Max or Product of the gradients; Adasum: every rank takes its own step,
        and `step()` combines the steps adaptively (blocks; takes no groups).
    gradient_predivide_factor: f divides by f before the sum and by size/f after it; Average only.
    num_groups, groups: parameters that travel together (a number, or lists of parameters).
    process_set: the ranks that train together; a rank outside of it trains by itself.
    sparse_as_dense: sends sparse gradients as dense ones; `.grad` is sparse again then.
    row_sparse: names of parameters (embeddings) whose gradients are zero in most rows: only the other
        rows travel, and `.grad` stays dense, with the same values.  True: those of two dimensions and
        at least 256 KiB for which that costs fewer bytes.  Gradients without zero rows, such as that
        of a table that an output projection shares, go dense after three exchanges, with a warning.
    overlap: what the exchange of gradients overlaps with.  "backward": the backward pass.
        "next-forward": that and the next forward pass.  `step()` returns at once, a parameter is
        updated at the latest when something reads it, and `.grad` is None after `step()`.
        "reduce-scatter": the same, with gradients in two halves.  They are summed in the backward pass,
        which `step()` waits for, and distributed in the forward pass.  Takes no compression.
        "none": nothing.  "auto": measures some steps with
        "backward", tries the mode whose predicted step is shortest, and keeps it if it is faster;
        `statistics()["overlap"]` has predictions and measurements.  None: RABIT_OVERLAP, which is
        "backward" unless it is set.  Results are the same.
    priorities: by name of the parameter, larger goes first; those without one go by the order in
        which the forward pass of the first step uses them.
    find_unused_parameters: agrees in every step on the parameters that no rank has used; they are
        not updated, as in one process, and keep `.grad` None.  Gradients are reduced at `step()` or
        `synchronize()` then, not when `backward()` returns.  False: they are updated with a gradient of zero, as by
        Horovod, and nothing has to be agreed.
    strategy: a method of `rabit.strategies`, in place of the mean of the gradients in every step.
        An Exchange gets error feedback where it needs it, and leaves small parameters alone.  A
        Strategy is used as it is.  Or a text such as "powersgd:rank=2".  `.grad` is what it leaves for the optimizer;
        with methods that work on parameters ("local", "diloco", …) this rank's own gradient.
        None: RABIT_STRATEGY, which `rabitrun --strategy` sets, or the mean.
    check_finite: looks for NaN and Inf in every gradient before it is combined; step() then raises
        IntegrityError on all ranks, with rank, tensor and index, and updates nothing.  "sample": a
        sixteenth of the gradients in each step, in turn.  None: RABIT_CHECK_FINITE, or not.
    check_replicas: after this many steps, compares the bits of the parameters of all ranks; 0: never.
        Raises IntegrityError on all ranks.  None: RABIT_CHECK_REPLICAS, or never.
    staleness: of BytePS: with RABIT_PS_ASYNC=1, each rank takes its own steps, which the servers add to
        the parameters that they keep, and continues from these without waiting for other ranks, except
        for those that are this many steps behind.  0: RABIT_PS_STALENESS, if RABIT_PS_ASYNC is set.
        Then `optimizer` itself is returned; InvalidArgument for any other argument.
    shard: "optimizer" divides the optimizer's state among the ranks (ZeRO stage 1), "gradients" also sends each
        backward pass's gradients at once and keeps this rank's part (stage 2), "parameters" also divides the
        parameters of `model`, which are gathered when its modules run (stage 3). The result is a
        rabit_torch.sharding.ShardedOptimizer; of the other arguments it takes named_parameters,
        backward_passes_per_step, process_set, and overlap="backward" or, in stages 1 and 2, "next-forward". Parameters
        in 16 bits are updated in float32, of which each rank keeps its part. None: RABIT_SHARD, or not.
    model: with shard="parameters": the module whose parameters the optimizer has; rabit_torch.sharding.shard(model)
        before chooses what is gathered together.

    offload: with shard: "disk:PATH" keeps the optimizer's state, and what parameters in 16 bits have in float32, in
        files of a folder of this host, some megabytes in memory at a time. With "cpu" the state of parameters on a
        device is in the memory of the host, and the optimizer steps there; for those on the CPU it changes nothing.
    shard_within: with shard: "host" divides among the ranks of a host, a number among that many successive ranks;
        the other hosts or groups have copies of the parts, and average what they have. None: among all ranks.
    host_shared: with shard="optimizer" or "gradients": the ranks of a host have the parameters once, in memory that
        they share, and each updates its part of them. Those of the first rank count. The others may build the model
        on the meta device if every rank passes model=, whose buffers get values too. None: RABIT_HOST_SHARED, or not.
    delay_after: with offload, and shard="optimizer" or "gradients": after this many steps, an update runs while the
        next step computes, and parameters get it at the end of that step: one step late, which may diverge at a
        learning rate that is stable without. step() publishes the update before, apply_late() the last. None: never.

    Raises InvalidArgument for an optimizer that is wrapped already or is not one of torch, names that are missing
    or double, or arguments out of range.
    """
    resolved = _checked_op(given := dict(locals()))
    names = checked_names(optimizer, named_parameters)
    if (other := _of_another_kind(optimizer, names, given)) is not None:
        return other
    chosen = chosen_strategy(
        strategy,
        default_engine().config.strategy,
        optimizer,
        {
            **{"compression": compression is not Compression.none, f"op={op}": resolved != Average},
            "gradient_predivide_factor": gradient_predivide_factor != 1.0,
            "row_sparse": row_sparse,
        },
    )
    overlap = _overlap_with(chosen, overlap)
    guards = make_guards(names, check_finite, check_replicas, chosen, process_set)
    make_reducer: Callable[..., GradientReducer] | None = None
    if resolved == Adasum:
        refuse_with_adasum(bool(num_groups or groups is not None or row_sparse))
        reducer: Any = _adasum(optimizer, names, overlap, compression, backward_passes_per_step, process_set)
    else:
        reduction = Reduction(
            compression=compression,
            op=ReduceOp(resolved),
            predivide_factor=gradient_predivide_factor,
            process_set=process_set,
            overlap=chosen_overlap(overlap, optimizer),
            backward_passes=backward_passes_per_step,
            priorities=checked_priorities(priorities, names),
            group_of=group_numbers(list(names), num_groups, groups),
            sparse_as_dense=sparse_as_dense,
            row_sparse=row_sparse,
            find_unused=find_unused_parameters,
        )
        make_reducer = functools.partial(GradientReducer, optimizer=optimizer, reduction=reduction)
        reducer = make_reducer(names, strategy=own_copy(chosen))
    is_auto = make_reducer is not None and wants_auto(overlap, optimizer)
    _refuse_in_elastic_jobs(reducer, is_auto, row_sparse, guards, process_set, chosen)
    result = _wrapped(optimizer, reducer, make_reducer, guards, chosen)
    if is_auto and process_set.included():
        result._rabit_follow_auto(AutoOverlap(reducer, process_set))
    result._rabit_share_loss = shared_loss_of(optimizer, names, resolved, process_set)
    return result


def _changed(given: Mapping[str, Any]) -> list[str]:
    """The names of the arguments that say how gradients are reduced, and differ from their defaults."""
    defaults = inspect.signature(DistributedOptimizer).parameters
    names = set(given) - {"optimizer", "named_parameters", "staleness"}
    return sorted(
        name for name in names if given[name] is not None and given[name] != defaults[name].default
    )


def _checked_op(given: Mapping[str, Any]) -> Any:
    """The reduction, which the numbers of the call fit; the optimizer is not wrapped."""
    refuse_wrapped(given["optimizer"], _DistributedMixin)
    resolved = reduce_op(given["op"], None)
    check_numbers(given["gradient_predivide_factor"], given["staleness"], resolved)
    return resolved


def _of_another_kind(
    optimizer: torch.optim.Optimizer, names: Mapping[torch.Tensor, str], given: Mapping[str, Any]
) -> Any:
    """An optimizer that does not reduce whole gradients, where one is asked for; few programs do."""
    check_process_set(given["process_set"])
    config = default_engine().config
    if given["staleness"] or config.ps_async:
        from rabit_torch.optimizer.asynchronous import make_asynchronous

        return make_asynchronous(optimizer, names, given["staleness"], _changed(given))
    stage = given["shard"] or config.shard
    for name, word in (
        ("model", "'parameters'"),
        ("offload", "'optimizer'"),
        ("shard_within", "'optimizer'"),
        ("host_shared", "'gradients'"),
        ("delay_after", "'gradients'"),
    ):
        if given[name] is not None and not stage:
            raise InvalidArgument(
                f"{name}= is for shard={word}, and shard is None. Add shard={word}, or leave {name} out"
            )
    return _sharded(optimizer, names, stage, given) if stage else None


def _sharded(
    optimizer: torch.optim.Optimizer,
    names: Mapping[torch.Tensor, str],
    stage: str,
    given: Mapping[str, Any],
) -> Any:
    taken = {"shard", "model", "offload", "shard_within", "host_shared", "delay_after"}
    taken |= {"backward_passes_per_step", "process_set"}
    crosses = given["overlap"] == "next-forward" and stage != "parameters"
    if crosses or given["overlap"] == "backward":
        taken.add("overlap")
    refused = set(_changed(given)) - taken
    if refused:
        raise InvalidArgument(
            f"shard={stage!r} takes no {', '.join(sorted(refused))}: gradients are averaged into the parts of "
            "their owners. Leave it out, or train without shard"
        )
    from rabit_torch.sharding.optimizer import shard_optimizer

    passes, process_set = given["backward_passes_per_step"], given["process_set"]
    model, offload, within = given["model"], given["offload"], given["shard_within"]
    delay_after = given["delay_after"]
    host_shared = given["host_shared"]
    if host_shared is None:
        host_shared = default_engine().config.host_shared
    kept = {
        "offload": offload is not None,
        "shard_within": within is not None,
        "host_shared": bool(host_shared),
        "a process set": process_set is not global_process_set,
    }
    refuse_in_elastic_jobs("DistributedOptimizer", kept, "Use shard alone")
    return shard_optimizer(
        optimizer, names, stage, passes, process_set, model, crosses, offload, within, bool(host_shared), delay_after
    )


def _adasum(
    optimizer: torch.optim.Optimizer,
    names: dict[torch.Tensor, str],
    overlap: Any,
    compression: Any,
    passes: int,
    process_set: ProcessSet,
) -> AdasumReducer:
    if overlap is not None:
        check_overlap(overlap, optimizer, AdasumReducer)
    return AdasumReducer(
        names, compression=compression, backward_passes=passes, process_set=process_set
    )


def _overlap_with(strategy: Strategy | None, overlap: Any) -> Any:
    """The argument `overlap`; "backward" where the configuration must not put off what a strategy works on."""
    check_strategy_overlap(strategy, overlap)
    works_on_updated = strategy is not None and strategy.uses_step
    return "backward" if works_on_updated and overlap is None else overlap


def _refuse_in_elastic_jobs(
    reducer: GradientReducer | AdasumReducer,
    is_auto: bool,
    row_sparse: Any,
    guards: Guards | None,
    process_set: ProcessSet,
    strategy: Strategy | None,
) -> None:
    """Raises InvalidArgument in an elastic job for what cannot follow its ranks."""
    refuse_in_elastic_jobs(
        "DistributedOptimizer",
        {
            "op=Adasum": reducer.combines_steps,
            "an overlap that crosses": is_auto or reducer.crossing is not None,
            "row_sparse": bool(row_sparse),
            "check_finite or check_replicas": guards is not None,
            "a process set": process_set is not global_process_set,
        },
        "Use the mean of the gradients with overlap='backward'",
    )
    refuse_strategy_in_elastic_jobs(strategy)


def _wrapped(
    optimizer: torch.optim.Optimizer,
    reducer: GradientReducer | AdasumReducer,
    make_reducer: Callable[..., GradientReducer] | None,
    guards: Guards | None,
    strategy: Strategy | None,
) -> Any:
    """The optimizer, as an instance of its own class that also has the methods of the mixin."""
    kind = type(optimizer)
    wrapped: Any = type(kind.__name__, (_DistributedMixin, kind), {"__module__": kind.__module__})
    result = wrapped.__new__(wrapped)
    result.__dict__.update(
        _rabit_inner=optimizer,
        _rabit_reducer=reducer,
        _rabit_make_reducer=make_reducer,
        _rabit_fresh_strategy=strategy if default_engine().config.min_np else None,
        _rabit_guards=guards,
        _rabit_share_loss=None,
        _rabit_should_synchronize=True,
        _rabit_synchronized=False,
        _rabit_auto=None,
    )
    follow_default_engine(result._rabit_start_over)
    return result
