"""Objects and states under the name of the module that programs for Horovod import them from."""

from rabit import allgather_object, broadcast_object
from rabit_torch.state import broadcast_optimizer_state, broadcast_parameters

__all__ = ["allgather_object", "broadcast_object", "broadcast_optimizer_state", "broadcast_parameters"]
