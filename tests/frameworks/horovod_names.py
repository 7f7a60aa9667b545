"""The public names of horovod.torch 0.28 with their arguments and defaults.

A bare argument has no default.  SET stands for global_process_set, NONE for Compression.none.
"""

from __future__ import annotations

_REDUCE = (
    "average=None, name=None, op=None, prescale_factor=1.0, postscale_factor=1.0, process_set=SET"
)
_REDUCE_SYNC = (
    "average=None, name=None, compression=NONE, op=None, prescale_factor=1.0, postscale_factor=1.0, "
    "process_set=SET"
)
_SCATTER = "name=None, op=0, process_set=SET, prescale_factor=1.0, postscale_factor=1.0"
_SCATTER_SYNC = (
    "name=None, compression=NONE, op=0, process_set=SET, prescale_factor=1.0, postscale_factor=1.0"
)

FUNCTIONS = {
    "init": "comm=None, process_sets=None",
    "shutdown": "",
    "is_initialized": "",
    "start_timeline": "file_path, mark_cycles=False",
    "stop_timeline": "",
    "size": "",
    "rank": "",
    "local_size": "",
    "local_rank": "",
    "cross_size": "",
    "cross_rank": "",
    "is_homogeneous": "",
    "mpi_threads_supported": "",
    "mpi_enabled": "",
    "mpi_built": "",
    "gloo_enabled": "",
    "gloo_built": "",
    "nccl_built": "",
    "ddl_built": "",
    "ccl_built": "",
    "cuda_built": "",
    "rocm_built": "",
    "allreduce": f"tensor, {_REDUCE_SYNC}",
    "allreduce_async": f"tensor, {_REDUCE}",
    "allreduce_": f"tensor, {_REDUCE}",
    "allreduce_async_": f"tensor, {_REDUCE}",
    "grouped_allreduce": f"tensors, {_REDUCE_SYNC}",
    "grouped_allreduce_async": f"tensors, {_REDUCE}",
    "grouped_allreduce_": f"tensors, {_REDUCE}",
    "grouped_allreduce_async_": f"tensors, {_REDUCE}",
    "sparse_allreduce_async": "tensor, name, op, process_set=SET",
    "allgather": "tensor, name=None, process_set=SET",
    "allgather_async": "tensor, name=None, process_set=SET",
    "grouped_allgather": "tensors, name=None, process_set=SET",
    "grouped_allgather_async": "tensors, name=None, process_set=SET",
    "broadcast": "tensor, root_rank, name=None, process_set=SET",
    "broadcast_async": "tensor, root_rank, name=None, process_set=SET",
    "broadcast_": "tensor, root_rank, name=None, process_set=SET",
    "broadcast_async_": "tensor, root_rank, name=None, process_set=SET",
    "alltoall": "tensor, splits=None, name=None, process_set=SET",
    "alltoall_async": "tensor, splits=None, name=None, process_set=SET",
    "reducescatter": f"tensor, {_SCATTER_SYNC}",
    "reducescatter_async": f"tensor, {_SCATTER}",
    "grouped_reducescatter": f"tensors, {_SCATTER_SYNC}",
    "grouped_reducescatter_async": f"tensors, {_SCATTER}",
    "join": "device=-1",
    "barrier": "process_set=SET",
    "poll": "handle",
    "synchronize": "handle",
    "add_process_set": "process_set",
    "remove_process_set": "process_set",
    "broadcast_parameters": "params, root_rank",
    "broadcast_optimizer_state": "optimizer, root_rank, model=None",
    "broadcast_object": "obj, root_rank=0, name=None, process_set=SET",
    "allgather_object": "obj, name=None",
    "DistributedOptimizer": (
        "optimizer, named_parameters=None, compression=NONE, backward_passes_per_step=1, op=0, "
        "gradient_predivide_factor=1.0, num_groups=0, groups=None, sparse_as_dense=False, process_set=SET"
    ),
    "SyncBatchNorm": "num_features, eps=1e-5, momentum=0.1, affine=True, track_running_stats=True",
    "ProcessSet": "ranks_or_comm",
}

CONSTANTS = {"Average": 0, "Sum": 1, "Adasum": 2, "Min": 3, "Max": 4, "Product": 5}

ATTRIBUTES = {
    "ProcessSet": ["process_set_id", "ranks", "mpi_comm", "size", "rank", "included"],
    "Compression": ["none", "fp16"],
    "Compression.fp16": ["compress", "decompress"],
}

# What a wrapped optimizer has beyond the methods of its own class.
OPTIMIZER = {
    "synchronize": "",
    "skip_synchronize": "",
    "set_backward_passes_per_step": "passes",
    "step": "closure=None",
    "load_state_dict": "state_dict",
}
OPTIMIZER_INTERNALS = ["_parameter_names", "_handles", "_requires_update", "_allreduce_delay"]
