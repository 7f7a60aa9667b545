"""Elastic jobs with MXNet: parameters, trainers and samplers that survive lost ranks.

    state = rabit_mxnet.elastic.MXNetState(net, trainer, step=0)

    @rabit_mxnet.elastic.run
    def train(state):
        while state.step < 1000:
            ...
            state.step += 1
            state.commit()

`rabit.elastic` has what does not depend on a framework.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import rabit
from rabit import InvalidArgument, broadcast_object
from rabit.elastic import (
    ElasticSampler,
    HorovodInternalError,
    HostsUpdatedInterrupt,
    ObjectState,
    State,
    batches,
    run,
)
from rabit_mxnet import dependency_engine
from rabit_mxnet.loaded import mx

__all__ = [
    "ElasticSampler",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "MXNetState",
    "ObjectState",
    "State",
    "batches",
    "run",
]

# That MXNet raises one after the other where all operations of a step have failed.
_ERRORS_MAX = 10_000


class MXNetState(ObjectState):
    """Parameters, a trainer and other values.

    params: a Block, a ParameterDict, or a dict of Parameters; parameters whose initialisation is
    deferred are kept from the commit on that finds them initialised.  trainer: a DistributedTrainer,
    with the state of its optimizer and its learning-rate schedule.
    A commit waits for the step and copies to the memory of this process.
    """

    def __init__(self, params: Any = None, trainer: Any = None, **values: Any) -> None:
        self.params, self.trainer = params, trainer
        self._parameters = _parameters_of(params)
        self._kept: dict[str, Any] = {}
        self._trainer_kept = b""
        if trainer is not None and not isinstance(trainer, mx.gluon.Trainer):
            raise InvalidArgument(
                f"MXNetState: trainer is a {type(trainer).__name__}, and a DistributedTrainer is expected. Pass "
                "other values by name."
            )
        refused = [name for name in ("per_rank", "replicas") if name in values]
        if refused:
            raise InvalidArgument(
                f"MXNetState: it takes no {' and no '.join(refused)}: with MXNet an elastic job has no strategies, so "
                "that all of this state is equal on all ranks. Leave it out."
            )
        super().__init__(**values)

    def save(self) -> None:
        kept = {name: each.data().asnumpy() for name, each in self._initialised()}
        trainer_kept = _states_of(self.trainer)
        earlier = self._saved
        try:
            super().save()
        finally:  # A signal's exception may come when the values are kept: they and these are one commit.
            if self._saved is not earlier:
                self._kept, self._trainer_kept = kept, trainer_kept

    def restore(self) -> None:
        _take_back_failures(self._arrays())
        self._take_tensors(self._kept, self._trainer_kept)
        super().restore()

    def broadcast(self, root_rank: int) -> None:
        tensors = {name: each.data().asnumpy() for name, each in self._initialised()}
        mine = (tensors, _states_of(self.trainer))
        self._take_tensors(*broadcast_object(mine, root_rank, "rabit.elastic.tensors"))
        super().broadcast(root_rank)

    def _take_tensors(self, tensors: Mapping[str, Any], trainer: bytes) -> None:
        for name, array in tensors.items():
            self._parameters[name].set_data(mx.nd.array(array, dtype=array.dtype))
        if self.trainer is not None:
            _set_states(self.trainer, trainer)

    def _initialised(self) -> Iterable[tuple[str, Any]]:
        return ((name, parameter) for name, parameter in self._parameters.items() if parameter._data is not None)

    def _arrays(self) -> Iterable[Any]:
        """Everything that a step writes."""
        for _, each in self._initialised():
            yield from each.list_data()
            if each.grad_req != "null":
                yield from each.list_grad()


def _parameters_of(params: Any) -> dict[str, Any]:
    if params is None:
        return {}
    if isinstance(params, mx.gluon.Block):
        params = params.collect_params()
    found = dict(params.items()) if isinstance(params, (dict, mx.gluon.ParameterDict)) else {}
    if not found or not all(isinstance(each, mx.gluon.Parameter) for each in found.values()):
        raise InvalidArgument(
            f"MXNetState: params is a {type(params).__name__} without Parameters. Pass a Block, or what its "
            "collect_params() gives."
        )
    return found


def _states_of(trainer: Any) -> bytes:
    """What Trainer.save_states writes: the optimizer with its counts, and its arrays."""
    if trainer is None:
        return b""
    found: bytes = trainer._updaters[0].get_states(dump_optimizer=True)
    return found


def _set_states(trainer: Any, states: bytes) -> None:
    """As Trainer.load_states does, from memory."""
    updater = trainer._updaters[0]
    updater.states, updater.optimizer = pickle.loads(states)
    updater.states_synced = dict.fromkeys(updater.states, False)
    trainer._optimizer = updater.optimizer
    trainer._optimizer.param_dict = dict(enumerate(trainer._params))


def _take_back_failures(arrays: Iterable[Any]) -> None:
    """Waits for all that MXNet has begun, and forgets what failed.

    An array that a failed operation was to write hands its error on to whatever reads or writes it,
    until somebody has waited for it.  The commit is written into the same arrays.
    """
    for array in arrays:
        _wait(array.wait_to_read)
    _wait(mx.nd.waitall)
    dependency_engine.forget_engines()


def _wait(wait: Callable[[], None]) -> None:
    """MXNet raises one error at a time; each is of the loss that is being recovered from."""
    for _ in range(_ERRORS_MAX):
        try:
            return wait()
        except (rabit.RabitError, mx.base.MXNetError):
            continue
    return wait()
