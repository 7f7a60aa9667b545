"""The collectives over arrays.

Every operation comes in a blocking form and an `_async` form that returns a Handle at once; forms with a
trailing underscore write the result into their argument.  Arguments that all share:

    tensor       a NumPy array, or anything with DLPack or the buffer protocol; scalars and lists of
                 numbers where nothing is written.  Read without a copy when contiguous.
    name         equal on all ranks; None: numbered by the order of the calls, which must then be
                 the same on all ranks.  Tensor i of a grouped call named "w" is named "w.i".
    process_set  the ranks that take part; roots and peers are global ranks all the same.
    priority     larger runs first.
    engine       None: the default engine.
    backend      "builtin" or "mpi"; "": the default, which RABIT_BACKEND names first.  Equal on all
                 ranks.

Results are NumPy arrays.  bfloat16 and 8-bit floats come as an array of the input's type, or as the bits in
unsigned integers where the input was a TensorView or came through DLPack.

Blocking forms return when the operation has finished on this rank.  Errors: Mismatch if the ranks
disagree about type, shape, operation or root; PeerLost if a rank died; InvalidArgument for what
cannot work, among them a name that is in flight; NotInitialized before init().
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rabit.compression import Compression, CompressionCodec
from rabit.engine.current import engine_for_work
from rabit.engine.engine import Engine
from rabit.engine.group_handle import GroupHandle
from rabit.engine.handle import Handle, no_handle
from rabit.engine.process_set import ProcessSet, global_process_set
from rabit.engine.request import Request
from rabit.errors import InvalidArgument
from rabit.ops.adapter import ARRAYS
from rabit.ops.call import Builder
from rabit.ops.draft import Draft
from rabit.ops.operations import Operations
from rabit.types import Kind, ReduceOp

__all__ = [
    "allgather",
    "allgather_async",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "barrier_async",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "gather",
    "gather_async",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "join",
    "poll",
    "recv",
    "recv_async",
    "reduce",
    "reduce_async",
    "reducescatter",
    "reducescatter_async",
    "scatter",
    "scatter_async",
    "send",
    "send_async",
    "synchronize",
]

STARTED: Operations[Any] = Operations(ARRAYS)
WAITED = STARTED.waiting()
_one = Builder[Handle](__name__)
_several = Builder[GroupHandle](__name__)

# --- reductions: the blocking forms take Horovod's `compression` before `op` ----------------------


def allreduce(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    compression: CompressionCodec = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    priority: int = 0,
    engine: Engine | None = None,
    backend: str = "",
    residual: Any = None,
    seed: int = 0,
) -> Any:
    """Combines `tensor` of every rank element by element; the same result on every rank.

    tensor: same shape and dtype on all ranks.  op: Average unless given.
    prescale_factor, postscale_factor: multiplied before and after the combination.
    average: Horovod's old form of `op`; True is Average, False is Sum.
    residual: what lossy compressions have not sent yet; an array like `tensor`, zeros at first, that
    this call reads and updates and the next one of the same tensor takes again.  None: it is lost.
    seed: of the random numbers of Compression.levels and Compression.topk; equal on all ranks and
    another one in every call, such as the number of the step.
    Returns a new array.  Blocks.  Raises Mismatch if shape, dtype or op differ between ranks,
    PeerLost if a rank died.
    """
    fields = (average, op, prescale_factor, postscale_factor, compression, priority, backend)
    operands = None if residual is None and seed == 0 else (residual, seed)
    return WAITED.new.run(tensor, name, process_set, engine, fields, operands)


def allreduce_(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    compression: CompressionCodec = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    priority: int = 0,
    engine: Engine | None = None,
    backend: str = "",
    residual: Any = None,
    seed: int = 0,
) -> Any:
    """Like `allreduce`, but the result replaces the values of `tensor`, which is returned."""
    fields = (average, op, prescale_factor, postscale_factor, compression, priority, backend)
    operands = None if residual is None and seed == 0 else (residual, seed)
    return WAITED.in_place.run(tensor, name, process_set, engine, fields, operands)


def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    name: str | None = None,
    compression: CompressionCodec = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    priority: int = 0,
    engine: Engine | None = None,
    backend: str = "",
) -> list[Any]:
    """`allreduce` of every tensor of the list, which become ready together; returns the list of results."""
    fields = (average, op, prescale_factor, postscale_factor, compression, priority, backend)
    results: list[Any] = WAITED.new.run_group(tensors, name, process_set, engine, fields)
    return results


def grouped_allreduce_(
    tensors: Sequence[Any],
    average: bool | None = None,
    name: str | None = None,
    compression: CompressionCodec = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    priority: int = 0,
    engine: Engine | None = None,
    backend: str = "",
) -> list[Any]:
    """`allreduce_` of every tensor of the list, which become ready together; returns the list."""
    fields = (average, op, prescale_factor, postscale_factor, compression, priority, backend)
    results: list[Any] = WAITED.in_place.run_group(tensors, name, process_set, engine, fields)
    return results


def reducescatter(
    tensor: Any,
    name: str | None = None,
    compression: CompressionCodec = Compression.none,
    op: ReduceOp | None = None,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    *,
    priority: int = 0,
    engine: Engine | None = None,
    backend: str = "",
) -> Any:
    """Combines `tensor` of every rank, and returns this rank's share of the rows.

    tensor: shape (n, *rest), the same on all ranks.  The ranks get n // size rows each, in rank
    order, and the first n % size of them one more.  op: Average unless given.
    compression: only Compression.none.
    Blocks.  Raises Mismatch if shape, dtype or op differ between ranks, PeerLost if a rank died.
    """
    if compression != Compression.none:
        with Draft.of(engine, Kind.REDUCESCATTER, name, process_set) as draft:
            raise draft.refusal(
                f"reducescatter takes no compression, and {compression} was given. Leave it out."
            )
    fields = (op, prescale_factor, postscale_factor, priority, backend)
    return WAITED.reducescattered.run(tensor, name, process_set, engine, fields)


allreduce_async = _one.starts(
    STARTED.allreduce,
    "Like `allreduce`, but returns a Handle at once; `tensor` must not change until it has finished.",
)
allreduce_async_ = _one.starts(
    STARTED.allreduce_, "Like `allreduce_`, but returns a Handle at once."
)
grouped_allreduce_async = _several.starts(
    STARTED.grouped_allreduce, "Like `grouped_allreduce`, but returns a GroupHandle at once."
)
grouped_allreduce_async_ = _several.starts(
    STARTED.grouped_allreduce_, "Like `grouped_allreduce_`, but returns a GroupHandle at once."
)
reducescatter_async = _one.starts(
    STARTED.reducescatter, "Like `reducescatter`, but returns a Handle at once."
)
grouped_reducescatter = _several.waits(
    WAITED.grouped_reducescatter,
    "`reducescatter` of every tensor of the list, which become ready together; returns the list of results.",
)
grouped_reducescatter_async = _several.starts(
    STARTED.grouped_reducescatter,
    "Like `grouped_reducescatter`, but returns a GroupHandle at once.",
)
reduce = _one.waits(
    WAITED.reduce,
    "Like `allreduce`, but only rank `root_rank` gets the result; the others get None.",
)
reduce_async = _one.starts(STARTED.reduce, "Like `reduce`, but returns a Handle at once.")

# --- values that stay as they are -----------------------------------------------------------------

allgather = _one.waits(
    WAITED.allgather,
    """Concatenates `tensor` of every rank along axis 0, in rank order.

    tensor: shape (n_r, *rest); `rest` and dtype equal on all ranks, n_r may differ.  A scalar
    counts as one row.
    Returns a new array of shape (sum of n_r, *rest).
    Blocks.  Raises Mismatch if dtype or `rest` differ between ranks, PeerLost if a rank died.
    """,
)
allgather_async = _one.starts(STARTED.allgather, "Like `allgather`, but returns a Handle at once.")
grouped_allgather = _several.waits(
    WAITED.grouped_allgather,
    "`allgather` of every tensor of the list, which become ready together; returns the list of results.",
)
grouped_allgather_async = _several.starts(
    STARTED.grouped_allgather, "Like `grouped_allgather`, but returns a GroupHandle at once."
)
broadcast = _one.waits(
    WAITED.broadcast,
    """A new array with the values that `tensor` has on rank `root_rank`.

    tensor: same shape and dtype on all ranks.  root_rank: a global rank of the process set.
    Blocks.  Raises Mismatch if shape, dtype or root differ between ranks, PeerLost if a rank died.
    """,
)
broadcast_async = _one.starts(STARTED.broadcast, "Like `broadcast`, but returns a Handle at once.")
broadcast_ = _one.waits(
    WAITED.broadcast_,
    """Gives `tensor` the values that it has on rank `root_rank`, and returns it.

    Blocks.  Raises Mismatch if shape, dtype or root differ between ranks, PeerLost if a rank died.
    """,
)
broadcast_async_ = _one.starts(
    STARTED.broadcast_, "Like `broadcast_`, but returns a Handle at once."
)
alltoall = _one.waits(
    WAITED.alltoall,
    """Sends each rank its rows of `tensor`, and returns the rows that came, in rank order.

    tensor: shape (n, *rest); `rest` and dtype equal on all ranks.
    splits: rows for each rank, adding up to n; None: n / size each.
    Returns a new array; with `splits` the pair (array, list of the rows from each rank).
    Blocks.  Raises Mismatch if dtype or `rest` differ between ranks, PeerLost if a rank died.
    """,
)
alltoall_async = _one.starts(STARTED.alltoall, "Like `alltoall`, but returns a Handle at once.")
gather = _one.waits(
    WAITED.gather,
    "Like `allgather`, but only rank `root_rank` gets the result; the others get None.",
)
gather_async = _one.starts(STARTED.gather, "Like `gather`, but returns a Handle at once.")
scatter = _one.waits(
    WAITED.scatter,
    """This rank's rows of the tensor that rank `root_rank` has.

    tensor: shape (n, *rest) on the root.  Elsewhere only dtype and `rest` count, so
    numpy.empty((0, *rest), dtype) will do.
    splits: on the root, the rows for each rank, adding up to n; None: n / size each.
    Returns a new array.  Blocks.  Raises Mismatch if dtype or `rest` differ between ranks,
    PeerLost if a rank died.
    """,
)
scatter_async = _one.starts(STARTED.scatter, "Like `scatter`, but returns a Handle at once.")
send = _one.waits(
    WAITED.send,
    """Sends `tensor` to rank `dst`, which must call `recv` with the same name, shape and dtype.

    name: None numbers the messages from this rank to `dst` in the order of the calls.
    Returns when `tensor` may be changed.
    Blocks.  Raises Mismatch if shape or dtype differ between the two, PeerLost if a rank died.
    """,
)
send_async = _one.starts(STARTED.send, "Like `send`, but returns a Handle at once.")
recv = _one.waits(
    WAITED.recv,
    """Receives into `tensor` what rank `src` sends, and returns it.

    tensor: of the shape and dtype that is sent.
    Blocks.  Raises Mismatch if shape or dtype differ between the two, PeerLost if a rank died.
    """,
)
recv_async = _one.starts(STARTED.recv, "Like `recv`, but returns a Handle at once.")
barrier = _one.waits(
    WAITED.barrier,
    """Returns when every rank has called it.

    It waits for ranks, not for operations: what this rank has started before may still be under way.
    """,
)
barrier_async = _one.starts(STARTED.barrier, "Like `barrier`, but returns a Handle at once.")

# --- and what is not a tensor ---------------------------------------------------------------------


def join(device: int = -1, *, engine: Engine | None = None) -> int:
    """Says that this rank has no more work, and waits until every rank has said so.

    Meanwhile the operations of the others continue: a joined rank contributes what changes nothing
    (zero to a sum, no rows to a gather).
    device: accepted for Horovod's sake.
    Returns the rank that joined last.  Raises InvalidArgument at once where an optimizer's method cannot continue.
    """
    engine = engine_for_work() if engine is None else engine
    if engine.refuses_join:
        raise InvalidArgument(f"rank {engine.rank} has called join: {engine.refuses_join}")
    (handle,) = engine.submit((Request(Kind.JOIN, engine.number_of(Kind.JOIN, 0)),))
    last = int(handle.result().reshape(-1)[0])
    engine.joins += 1
    return last


def poll(handle: Any) -> bool:
    """True when the operation of `handle` has finished, well or not.  Returns at once."""
    try:
        done = handle.done
    except AttributeError:
        raise no_handle(handle, "poll") from None
    return bool(done())


def synchronize(handle: Any) -> Any:
    """Waits for the operation of `handle` and returns its result; raises its error if it failed."""
    try:
        result = handle.result
    except AttributeError:
        raise no_handle(handle, "synchronize") from None
    return result()
