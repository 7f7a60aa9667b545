"""Collectives on torch tensors: asynchronous, in place, and those that carry no gradient.

Arguments and their order are Horovod's.  Arguments that all share:

    tensor       a dense tensor of the CPU or of CUDA; one that is not contiguous is copied first.
    name         equal on all ranks; None: numbered by the order of the calls, which must then be the same on all
                 of them.  Tensor i of a grouped call named "w" is named "w.i".
    process_set  the ranks that take part; roots and peers are global ranks all the same.
    priority     larger runs first.
    engine       None: the default engine.
    backend      "builtin", "mpi", "nccl" or "ps"; "": the default, which RABIT_BACKEND names first.  Equal on all
                 ranks.

Blocking forms return when the operation has finished on this rank; the `_async` forms return a handle at once, and
their `tensor` must not change until `synchronize(handle)`.  The differentiable forms are in
rabit_torch/ops/differentiable.py.  Errors: InvalidArgument for a rank that takes no part, for what is not a tensor, and
for a name that is in flight; Unsupported for devices, layouts and dtypes that no collective carries; Mismatch if the
ranks disagree about dtype, shape, operation or root; PeerLost if a rank died.
"""

from __future__ import annotations

from typing import Any

import torch

import rabit
from rabit import ProcessSet, ReduceOp, global_process_set
from rabit.framework import Builder
from rabit_torch.ops.handles import TorchHandle
from rabit_torch.ops.operations import STARTED, WAITED

_build = Builder[TorchHandle](__name__)

# --- allreduce ------------------------------------------------------------------------------------

# Gradients come one by one: these are written out, without the frame of a builder's function.


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    compression: rabit.CompressionCodec = rabit.Compression.none,
    priority: int = 0,
    engine: rabit.Engine | None = None,
    backend: str = "",
    residual: Any = None,
    seed: int = 0,
) -> TorchHandle:
    """Starts an allreduce into a new tensor of the same shape and dtype; returns a handle.

    `tensor` must not change until `synchronize(handle)`.  op: Average (default), Sum, Min, Max,
    Product, or bitwise on integers and bool.  Does not block.
    """
    fields = (average, op, prescale_factor, postscale_factor, compression, priority, backend)
    operands = None if residual is None and seed == 0 else (residual, seed)
    result: TorchHandle = STARTED.new.start(tensor, name, process_set, engine, fields, operands)
    return result


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    compression: rabit.CompressionCodec = rabit.Compression.none,
    priority: int = 0,
    engine: rabit.Engine | None = None,
    backend: str = "",
    residual: Any = None,
    seed: int = 0,
) -> TorchHandle:
    """Starts an allreduce in place; returns a handle.  Does not block."""
    fields = (average, op, prescale_factor, postscale_factor, compression, priority, backend)
    operands = None if residual is None and seed == 0 else (residual, seed)
    result: TorchHandle = STARTED.in_place.start(
        tensor, name, process_set, engine, fields, operands
    )
    return result


def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    compression: rabit.CompressionCodec = rabit.Compression.none,
    priority: int = 0,
    engine: rabit.Engine | None = None,
    backend: str = "",
    residual: Any = None,
    seed: int = 0,
) -> torch.Tensor:
    """Reduces `tensor` over all ranks in place and returns it.  Blocks.

    op: as of `allreduce_async`.
    Raises Mismatch if shape, dtype or op differ between ranks, PeerLost if a rank died.
    """
    fields = (average, op, prescale_factor, postscale_factor, compression, priority, backend)
    operands = None if residual is None and seed == 0 else (residual, seed)
    result: torch.Tensor = WAITED.in_place.run(tensor, name, process_set, engine, fields, operands)
    return result


grouped_allreduce_async = _build.starts(
    STARTED.grouped_allreduce,
    """Starts one allreduce for several tensors that become ready together.  Does not block.

    The handle gives the list of new tensors.
    """,
)
grouped_allreduce_async_ = _build.starts(
    STARTED.grouped_allreduce_, "Like `grouped_allreduce_async`, in place.  Does not block."
)
grouped_allreduce_ = _build.waits(
    WAITED.grouped_allreduce_,
    """Reduces several tensors in place, as one; returns them.  Blocks.

    Raises Mismatch if shape, dtype or op differ between ranks, PeerLost if a rank died.
    """,
)

# --- broadcast ------------------------------------------------------------------------------------

broadcast_async = _build.starts(
    STARTED.broadcast,
    "Starts a broadcast from `root_rank` (a global rank) into a new tensor; returns a handle.  Does not block.",
)
broadcast_async_ = _build.starts(
    STARTED.broadcast_,
    "Starts a broadcast in place from `root_rank` (a global rank); returns a handle.  Does not block.",
)
broadcast_ = _build.waits(
    WAITED.broadcast_,
    """Overwrites `tensor` with that of `root_rank` and returns it.  Blocks.

    Raises Mismatch if shape, dtype or root differ between ranks, PeerLost if a rank died.
    """,
)

# --- results of a shape that is known only afterwards ---------------------------------------------

allgather_async = _build.starts(
    STARTED.allgather, "Starts an allgather along axis 0; returns a handle.  Does not block."
)
grouped_allgather_async = _build.starts(
    STARTED.grouped_allgather,
    "Starts an allgather of several tensors that become ready together; returns a handle.  Does not block.",
)
reducescatter_async = _build.starts(
    STARTED.reducescatter,
    """Starts a reducescatter along axis 0; returns a handle.  Does not block.

    Axis 0 is divided as evenly as possible; the low ranks get one row more.  op: any but Adasum.
    """,
)
grouped_reducescatter_async = _build.starts(
    STARTED.grouped_reducescatter,
    "Starts a reducescatter of several tensors that become ready together; returns a handle.  Does not block.",
)
alltoall_async = _build.starts(
    STARTED.alltoall,
    """Starts an alltoall along axis 0; returns a handle.  Does not block.

    splits: rows for each rank, in rank order (integers; sum = extent 0); None: equal parts.
    The handle gives the received rows; with splits the pair (rows, received_splits as an int32 tensor).
    """,
)

# --- operations in which one rank differs ---------------------------------------------------------

reduce = _build.waits(
    WAITED.reduce,
    """Combines `tensor` of every rank element by element, for rank `root_rank` alone.

    tensor: same shape and dtype on all ranks; not changed.
    op: Average (default), Sum, Min, Max, Product, or bitwise on integers and bool; InvalidArgument for
        Adasum.
    Returns a new tensor of the same shape and dtype on the root, None elsewhere.  Blocks.
    Raises Mismatch if shape, dtype or op differ between ranks, PeerLost if a rank died.
    """,
)
reduce_async = _build.starts(STARTED.reduce, "Like `reduce`, but returns a handle at once.")
gather = _build.waits(
    WAITED.gather,
    """Concatenates `tensor` of every rank along axis 0, in rank order, on rank `root_rank` alone.

    tensor: shape (n_r, *rest); `rest` and dtype equal on all ranks, n_r may differ.  A scalar counts
        as one row.
    Returns a new tensor of shape (sum of n_r, *rest) on the root, None elsewhere.  Blocks.
    Raises Mismatch if dtype or `rest` differ between ranks, PeerLost if a rank died.
    """,
)
gather_async = _build.starts(STARTED.gather, "Like `gather`, but returns a handle at once.")
scatter = _build.waits(
    WAITED.scatter,
    """This rank's rows of the tensor that rank `root_rank` has, a new tensor.

    tensor: shape (n, *rest) on the root.  Elsewhere only dtype and `rest` count, so
        torch.empty(0, *rest, dtype=…) will do.
    splits: on the root, the rows for each rank, in rank order (integers, sum = n); None: n / size
        each, InvalidArgument where that is not a whole number.
    Blocks.  Raises Mismatch if dtype or `rest` differ between ranks, PeerLost if a rank died.
    """,
)
scatter_async = _build.starts(STARTED.scatter, "Like `scatter`, but returns a handle at once.")
send = _build.waits(
    WAITED.send,
    """Sends `tensor` to global rank `dst`, which must call `recv` with the same name.

    tensor: any shape; the receiver's has the same shape and dtype.
    name: None numbers the messages from this rank to `dst` in the order of the calls.  `rabit.recv`
        with the name receives as well.
    Returns when `tensor` may be changed.  Blocks.  Raises InvalidArgument if `dst` is this rank.
    """,
)
send_async = _build.starts(
    STARTED.send,
    "Like `send`, but returns a handle at once; `tensor` must not change until it has finished.",
)
recv = _build.waits(
    WAITED.recv,
    """Receives into `tensor` what global rank `src` sends, and returns it.

    tensor: of the shape and dtype that is sent; need not be contiguous.
    name: None numbers the messages from `src` to this rank in the order of the calls.
    Blocks.  Raises InvalidArgument if `src` is this rank.
    """,
)
recv_async = _build.starts(
    STARTED.recv,
    "Like `recv`, but returns a handle at once; `tensor` is written until it has finished.",
)
