"""The public names of rabit, each of them loaded at its first use.

A process that starts an engine needs no array, and few programs use more than some operations: NumPy
and most of the package load with the first name that takes them.
"""

import typing as _typing
from importlib import import_module as _import_module

if _typing.TYPE_CHECKING:
    import rabit.elastic as elastic
    import rabit.integrations.jax as jax
    import rabit.integrations.keras as keras
    import rabit.integrations.lightgbm as lightgbm
    import rabit.integrations.ray as ray
    import rabit.integrations.xgboost as xgboost
    import rabit.strategies as strategies
    from rabit.board import Board, connect
    from rabit.compression import Compression, CompressionCodec
    from rabit.config.config import Config
    from rabit.diagnostics.capabilities import (
        capabilities,
        ccl_built,
        cuda_built,
        ddl_built,
        gloo_built,
        gloo_enabled,
        mpi_built,
        mpi_enabled,
        mpi_threads_supported,
        nccl_built,
        rocm_built,
        start_timeline,
        statistics,
        stop_timeline,
        summary,
    )
    from rabit.diagnostics.metrics import metrics
    from rabit.engine.batch import Batch
    from rabit.engine.current import default_engine
    from rabit.engine.engine import Engine
    from rabit.engine.group_handle import GroupHandle
    from rabit.engine.handle import Handle
    from rabit.engine.job import Job, JobRuntime
    from rabit.engine.process_set import (
        ProcessSet,
        add_process_set,
        global_process_set,
        remove_process_set,
    )
    from rabit.engine.request import Request
    from rabit.engine.tensor import TensorView
    from rabit.errors import (
        Aborted,
        IntegrityError,
        Internal,
        InvalidArgument,
        Mismatch,
        NotInitialized,
        PeerLost,
        RabitError,
        ResourceExhausted,
        TimedOut,
        Unsupported,
    )
    from rabit.launch.run import RunFailed, run
    from rabit.meeting import Meeting
    from rabit.ops.collectives import (
        allgather,
        allgather_async,
        allreduce,
        allreduce_,
        allreduce_async,
        allreduce_async_,
        alltoall,
        alltoall_async,
        barrier,
        barrier_async,
        broadcast,
        broadcast_,
        broadcast_async,
        broadcast_async_,
        gather,
        gather_async,
        grouped_allgather,
        grouped_allgather_async,
        grouped_allreduce,
        grouped_allreduce_,
        grouped_allreduce_async,
        grouped_allreduce_async_,
        grouped_reducescatter,
        grouped_reducescatter_async,
        join,
        poll,
        recv,
        recv_async,
        reduce,
        reduce_async,
        reducescatter,
        reducescatter_async,
        scatter,
        scatter_async,
        send,
        send_async,
        synchronize,
    )
    from rabit.ops.objects import allgather_object, broadcast_object
    from rabit.ops.ordered import (
        ordered_allgather_into,
        ordered_allreduce_,
        ordered_alltoall_into,
        ordered_barrier,
        ordered_broadcast_,
        ordered_reducescatter_into,
    )
    from rabit.ops.steps import mark, mark_step
    from rabit.ops.votes import any_rank, request_stop, should_stop
    from rabit.server_parameters import ServerParameters
    from rabit.session import (
        cross_rank,
        cross_size,
        init,
        is_homogeneous,
        is_initialized,
        local_rank,
        local_size,
        rank,
        shutdown,
        size,
    )
    from rabit.types import (
        CPU,
        CUDA,
        Average,
        BitwiseAnd,
        BitwiseOr,
        BitwiseXor,
        DType,
        Kind,
        Max,
        Min,
        Product,
        ReduceOp,
        Sum,
    )
    from rabit.version import __version__
else:
    # Module -> what is imported from it above.
    _NAMES = {
        "rabit.board": "Board connect",
        "rabit.compression": "Compression CompressionCodec",
        "rabit.config.config": "Config",
        "rabit.diagnostics.capabilities": (
            "capabilities ccl_built cuda_built ddl_built gloo_built gloo_enabled mpi_built "
            "mpi_enabled mpi_threads_supported nccl_built rocm_built start_timeline statistics "
            "stop_timeline summary"
        ),
        "rabit.diagnostics.metrics": "metrics",
        "rabit.engine.batch": "Batch",
        "rabit.engine.current": "default_engine",
        "rabit.engine.engine": "Engine",
        "rabit.engine.group_handle": "GroupHandle",
        "rabit.engine.handle": "Handle",
        "rabit.engine.job": "Job JobRuntime",
        "rabit.engine.process_set": "ProcessSet add_process_set global_process_set remove_process_set",
        "rabit.engine.request": "Request",
        "rabit.engine.tensor": "TensorView",
        "rabit.errors": (
            "Aborted IntegrityError Internal InvalidArgument Mismatch NotInitialized PeerLost "
            "RabitError ResourceExhausted TimedOut Unsupported"
        ),
        "rabit.launch.run": "RunFailed run",
        "rabit.meeting": "Meeting",
        "rabit.ops.collectives": (
            "allgather allgather_async allreduce allreduce_ allreduce_async allreduce_async_ "
            "alltoall alltoall_async barrier barrier_async broadcast broadcast_ broadcast_async "
            "broadcast_async_ gather gather_async grouped_allgather grouped_allgather_async "
            "grouped_allreduce grouped_allreduce_ grouped_allreduce_async "
            "grouped_allreduce_async_ grouped_reducescatter grouped_reducescatter_async join poll "
            "recv recv_async reduce reduce_async reducescatter reducescatter_async scatter "
            "scatter_async send send_async synchronize"
        ),
        "rabit.ops.objects": "allgather_object broadcast_object",
        "rabit.ops.ordered": (
            "ordered_allgather_into ordered_allreduce_ ordered_alltoall_into ordered_barrier "
            "ordered_broadcast_ ordered_reducescatter_into"
        ),
        "rabit.ops.steps": "mark mark_step",
        "rabit.ops.votes": "any_rank request_stop should_stop",
        "rabit.server_parameters": "ServerParameters",
        "rabit.session": (
            "cross_rank cross_size init is_homogeneous is_initialized local_rank local_size rank "
            "shutdown size"
        ),
        "rabit.types": (
            "CPU CUDA Average BitwiseAnd BitwiseOr BitwiseXor DType Kind Max Min Product ReduceOp "
            "Sum"
        ),
        "rabit.version": "__version__",
    }
    _MODULE_OF = {name: module for module, names in _NAMES.items() for name in names.split()}

    # Each serves another library, which loads with the first call.
    _INTEGRATIONS = ("jax", "keras", "lightgbm", "ray", "xgboost")

    def __getattr__(name: str) -> _typing.Any:
        if name in _INTEGRATIONS:
            return _import_module(f"rabit.integrations.{name}")
        if name in ("elastic", "strategies"):
            return _import_module(f"rabit.{name}")
        if name in _MODULE_OF:
            globals()[name] = getattr(_import_module(_MODULE_OF[name]), name)
            return globals()[name]
        raise AttributeError(f"module 'rabit.api' has no attribute {name!r}")


__all__ = [
    "Aborted",
    "Average",
    "Batch",
    "BitwiseAnd",
    "BitwiseOr",
    "BitwiseXor",
    "Board",
    "CPU",
    "CUDA",
    "Compression",
    "CompressionCodec",
    "Config",
    "DType",
    "Engine",
    "GroupHandle",
    "Handle",
    "IntegrityError",
    "Internal",
    "InvalidArgument",
    "Job",
    "JobRuntime",
    "Kind",
    "Max",
    "Meeting",
    "Min",
    "Mismatch",
    "NotInitialized",
    "PeerLost",
    "ProcessSet",
    "Product",
    "RabitError",
    "ReduceOp",
    "Request",
    "ResourceExhausted",
    "RunFailed",
    "ServerParameters",
    "Sum",
    "TensorView",
    "TimedOut",
    "Unsupported",
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
    "barrier_async",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "capabilities",
    "ccl_built",
    "connect",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "default_engine",
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
    "jax",
    "join",
    "keras",
    "lightgbm",
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
    "rank",
    "ray",
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
    "start_timeline",
    "statistics",
    "stop_timeline",
    "strategies",
    "summary",
    "synchronize",
    "xgboost",
]
