"""rabit for PyTorch: Horovod's names and BytePS's, on rabit's engine.

import rabit_torch as rabit
rabit.init()
optimizer = rabit.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
rabit.broadcast_parameters(model.state_dict(), root_rank=0)
"""

import typing as _typing
from importlib import import_module as _import_module

import rabit_torch.distributed as _distributed  # noqa: F401  # makes the backend known to torch
from rabit import (
    Aborted,
    Average,
    BitwiseAnd,
    BitwiseOr,
    BitwiseXor,
    Config,
    IntegrityError,
    Internal,
    InvalidArgument,
    Max,
    Min,
    Mismatch,
    NotInitialized,
    PeerLost,
    ProcessSet,
    Product,
    RabitError,
    ResourceExhausted,
    Sum,
    TimedOut,
    Unsupported,
    __version__,
    add_process_set,
    allgather_object,
    any_rank,
    barrier,
    broadcast_object,
    capabilities,
    ccl_built,
    connect,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    global_process_set,
    gloo_built,
    gloo_enabled,
    init,
    is_homogeneous,
    is_initialized,
    join,
    local_rank,
    local_size,
    mark,
    mark_step,
    metrics,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rank,
    remove_process_set,
    request_stop,
    rocm_built,
    run,
    should_stop,
    shutdown,
    size,
    start_timeline,
    statistics,
    stop_timeline,
    strategies,
    summary,
)
from rabit_torch.compression import Compression
from rabit_torch.data_parallel import DistributedDataParallel
from rabit_torch.device import local_device
from rabit_torch.ops.adasum import Adasum
from rabit_torch.ops.collected import (
    allgather_async,
    alltoall_async,
    grouped_allgather_async,
    grouped_reducescatter_async,
    reducescatter_async,
)
from rabit_torch.ops.collectives import (
    allreduce_,
    allreduce_async,
    allreduce_async_,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
)
from rabit_torch.ops.differentiable import (
    allgather,
    allreduce,
    alltoall,
    broadcast,
    grouped_allgather,
    grouped_allreduce,
    grouped_reducescatter,
    reducescatter,
)
from rabit_torch.ops.handles import poll, synchronize
from rabit_torch.ops.ordered import (
    ordered_allgather_into,
    ordered_allreduce_,
    ordered_alltoall_into,
    ordered_barrier,
    ordered_broadcast_,
    ordered_reducescatter_into,
)
from rabit_torch.ops.push_pull import (
    declare,
    push_pull,
    push_pull_async,
    push_pull_async_inplace,
    push_pull_inplace,
)
from rabit_torch.ops.rooted import (
    gather,
    gather_async,
    recv,
    recv_async,
    reduce,
    reduce_async,
    scatter,
    scatter_async,
    send,
    send_async,
)
from rabit_torch.ops.sparse import sparse_allreduce_async
from rabit_torch.optimizer.distributed_optimizer import DistributedOptimizer
from rabit_torch.overlap.compile import compile
from rabit_torch.state import broadcast_optimizer_state, broadcast_parameters
from rabit_torch.sync_batch_norm import SyncBatchNorm

HorovodInternalError = RabitError  # Horovod's name for what a failed operation raises

__all__ = [
    "Aborted",
    "Adasum",
    "Average",
    "BitwiseAnd",
    "BitwiseOr",
    "BitwiseXor",
    "Checkpoint",
    "Compression",
    "Config",
    "DdpMethod",
    "DistributedDataParallel",
    "DistributedOptimizer",
    "FsdpMethod",
    "HorovodInternalError",
    "IntegrityError",
    "Internal",
    "InvalidArgument",
    "Max",
    "Min",
    "Mismatch",
    "NotInitialized",
    "PeerLost",
    "ProcessSet",
    "Product",
    "RabitError",
    "ResourceExhausted",
    "Sum",
    "SyncBatchNorm",
    "TimedOut",
    "Unsupported",
    "Waves",
    "__version__",
    "add_process_set",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "any_rank",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "capabilities",
    "ccl_built",
    "compile",
    "connect",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "ddp_hook",
    "declare",
    "elastic",
    "gather",
    "gather_async",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_device",
    "local_rank",
    "local_size",
    "mark",
    "mark_step",
    "metrics",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "ordered_allgather_into",
    "ordered_allreduce_",
    "ordered_alltoall_into",
    "ordered_barrier",
    "ordered_broadcast_",
    "ordered_reducescatter_into",
    "poll",
    "push_pull",
    "push_pull_async",
    "push_pull_async_inplace",
    "push_pull_inplace",
    "rank",
    "recv",
    "recv_async",
    "reduce",
    "reduce_async",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "request_stop",
    "rocm_built",
    "run",
    "scatter",
    "scatter_async",
    "send",
    "send_async",
    "should_stop",
    "shutdown",
    "size",
    "sparse_allreduce_async",
    "start_timeline",
    "statistics",
    "stop_timeline",
    "strategies",
    "summary",
    "synchronize",
]

if _typing.TYPE_CHECKING:
    import rabit_torch.elastic as elastic
    from rabit_torch.checkpoint import Checkpoint
    from rabit_torch.distributed.ddp_method import DdpMethod
    from rabit_torch.distributed.fsdp_method import FsdpMethod
    from rabit_torch.distributed.hook import ddp_hook
    from rabit_torch.waves import Waves
else:
    _LATE = {
        "Checkpoint": "rabit_torch.checkpoint",
        "DdpMethod": "rabit_torch.distributed.ddp_method",
        "FsdpMethod": "rabit_torch.distributed.fsdp_method",
        "ddp_hook": "rabit_torch.distributed.hook",
        "Waves": "rabit_torch.waves",
    }

    def __getattr__(name: str) -> _typing.Any:
        if name in _LATE:  # Most programs start without one, and would wait for it to load.
            found = globals()[name] = getattr(_import_module(_LATE[name]), name)
            return found
        if name == "elastic":
            return _import_module("rabit_torch.elastic")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
