"""Jobs that continue with fewer ranks: the state of the last commit, on the ranks that are left.

    state = rabit.elastic.ObjectState(step=0, weights=np.zeros(1000))

    @rabit.elastic.run
    def train(state):
        while state.step < 1000:
            gradient = ...
            state.weights -= rabit.allreduce(gradient, name="gradient")
            state.step += 1
            state.commit()

    rabit.init()
    train(state)

Start it with `rabitrun -np 4 --min-np 2 --max-np 8`.  Tensors of other frameworks: rabit_torch.elastic.
"""

from rabit.elastic.loop import Batch, batches
from rabit.elastic.recovery import run
from rabit.elastic.sampler import ElasticSampler
from rabit.elastic.state import ObjectState, State
from rabit.elastic.updates import HostsUpdatedInterrupt
from rabit.errors import RabitError as HorovodInternalError

__all__ = [
    "Batch",
    "ElasticSampler",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "ObjectState",
    "State",
    "batches",
    "run",
]
