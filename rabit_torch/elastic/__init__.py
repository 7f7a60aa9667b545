"""Elastic jobs with PyTorch: models, optimizers and samplers that survive lost ranks.

    state = rabit_torch.elastic.TorchState(model, optimizer, step=0)

    @rabit_torch.elastic.run
    def train(state):
        while state.step < 1000:
            ...
            state.step += 1
            state.commit()

`rabit.elastic` has what does not depend on a framework.
"""

from rabit.elastic import (
    HorovodInternalError,
    HostsUpdatedInterrupt,
    ObjectState,
    State,
    batches,
    run,
)
from rabit_torch.elastic.sampler import ElasticSampler
from rabit_torch.elastic.state import TorchState

__all__ = [
    "ElasticSampler",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "ObjectState",
    "State",
    "TorchState",
    "batches",
    "run",
]
