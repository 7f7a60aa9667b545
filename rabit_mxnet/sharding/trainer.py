"""DividedTrainer: what DistributedTrainer(shard=...) does, and its state by name with any `shard`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import rabit
from rabit import InvalidArgument, ProcessSet
from rabit.sharding import Interval
from rabit_mxnet.loaded import mx
from rabit_mxnet.sharding.named_state import load_state, saved_state
from rabit_mxnet.sharding.shards import STAGES, Shards

__all__ = ["DividedTrainer", "chosen_stage"]


class DividedTrainer(mx.gluon.Trainer):  # type: ignore[misc]
    """The part of DistributedTrainer that knows of slices."""

    _stage: str  # "" where nothing is divided
    _process_set: ProcessSet
    _names: str  # what the names of gradients begin with
    _places: dict[Any, int]  # of parameters in the forward pass, by name
    _shards: Shards | None = None  # from the first step on, which knows all shapes

    def clip_global_norm(self, max_norm: float) -> float:
        """Scales the gradients that `allreduce_grads` has summed so that their norm is at most `max_norm`.

        For shard=..., between `allreduce_grads` and `update`.  Returns the norm before, with the same bits for every
        number of ranks.  Blocks until every rank has called it.
        """
        if not self._is_divided:
            raise InvalidArgument(
                "clip_global_norm is for shard=..., and this trainer has whole gradients. Use "
                "mxnet.gluon.utils.clip_global_norm."
            )
        return self._made_shards().clip(max_norm)

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's state by name of the parameter, as NumPy arrays, without communication.

        {"state": {name: {key: values}}, "counts": {name: int}, "options": {...}}: values are of the flattened
        parameter; with shard=... they are rabit.checkpoint.Part, this rank's own elements.  Waits for MXNet.
        """
        return saved_state(self._updaters[0], self._by_name(), self._interval)

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Takes what `state_dict` gave, with any `shard` and in a job of any size.

        The parameters must be initialised.  Blocks if it holds parts, which the ranks exchange.  Raises
        InvalidArgument for other names.
        """
        process_set, names = self._process_set, self._names
        load_state(saved, self._updaters[0], self._by_name(), self._interval, process_set, names)

    def save_states(self, fname: str) -> None:
        """As Gluon's trainer; not with shard=..., where no rank has the whole state: see `state_dict`."""
        self._refuse_whole("save_states", "Save trainer.state_dict() on every rank")
        super().save_states(fname)

    def load_states(self, fname: str) -> None:
        """As Gluon's trainer; not with shard=...: see `load_state_dict`."""
        self._refuse_whole("load_states", "Use trainer.load_state_dict()")
        super().load_states(fname)

    @property
    def _is_divided(self) -> bool:
        return bool(self._stage) and self._process_set.included()

    def _refuse_whole(self, what: str, instead: str) -> None:
        if self._is_divided:
            raise InvalidArgument(
                f"{what} on rank {rabit.rank()}: the state is divided among the ranks (shard={self._stage!r}), and a "
                f"file of one rank would have its part alone. {instead}: rabit.Checkpoint does."
            )

    def _trained(self) -> list[int]:
        return [i for i, param in enumerate(self._params) if param.grad_req != "null"]

    def _by_name(self) -> dict[str, tuple[int, Any]]:
        return {str(self._params[i].name): (i, self._params[i]) for i in self._trained()}

    def _interval(self, name: str) -> Interval | None:
        return self._made_shards().interval(name) if self._is_divided else None

    def _made_shards(self) -> Shards:
        if self._shards is None:
            trained = self._trained()
            backward = sorted(trained, key=lambda i: -self._places[self._params[i].name])
            self._shards = Shards(
                {i: self._params[i] for i in trained},
                backward,
                self._optimizer,
                self._process_set,
                self._names,
                self._stage == "gradients",
            )
        return self._shards

    def _update(self, ignore_stale_grad: bool = False) -> None:
        """Gluon calls this from `step` and `update`."""
        if not self._is_divided:
            super()._update(ignore_stale_grad)
            return
        if getattr(self, "_amp_loss_scaler", None) is not None:
            raise rabit.Unsupported(
                "shard with mxnet.contrib.amp: its loss scaler reads whole gradients. Leave shard out, or use "
                "float16 parameters with multi_precision=True."
            )
        with mx.autograd.pause():
            self._made_shards().update(self._updaters[0], ignore_stale_grad)


def chosen_stage(given: str | None, has_other: bool) -> str:
    """The `shard` of an argument, None: of the configuration."""
    stage = given or rabit.default_engine().config.shard
    if not stage:
        return ""
    if stage == "parameters":
        raise InvalidArgument(
            "shard='parameters': Gluon lets nobody gather a parameter while a backward pass runs. Use 'gradients'."
        )
    if stage not in STAGES:
        raise InvalidArgument(
            f"shard is {stage!r}; expected one of {', '.join(map(repr, STAGES))}."
        )
    if has_other:
        raise InvalidArgument(
            f"shard={stage!r} takes no strategy, compression, gradient_predivide_factor or num_groups: gradients are "
            "summed into the parts of their owners. Leave them out, or train without shard."
        )
    return stage
