"""Operations in which ranks exchange different parts: alltoall, gather, scatter, send, recv, join.

The shared arguments are described in rabit/ops/reductions.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rabit.engine.batch import WAITING
from rabit.engine.engine import Engine
from rabit.engine.handle import Handle
from rabit.engine.process_set import ProcessSet, global_process_set
from rabit.engine.tensor import view_input, view_output
from rabit.errors import InvalidArgument
from rabit.ops.again import Again
from rabit.ops.reductions import Call, as_type_of
from rabit.types import Kind

__all__ = [
    "alltoall",
    "alltoall_async",
    "gather",
    "gather_async",
    "join",
    "message_name",
    "recv",
    "recv_async",
    "scatter",
    "scatter_async",
    "send",
    "send_async",
]


def alltoall_async(
    tensor: Any,
    splits: Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    *,
    priority: int = 0,
    engine: Engine | None = None,
    backend: str = "",
) -> Handle:
    """Like `alltoall`, but returns a Handle at once."""
    kind, arguments = Kind.ALLTOALL, (priority, backend)
    is_alone = splits is not None  # the rows of a call are mostly not those of the next one
    again = Again("alltoall", kind, tensor, name, process_set, engine, arguments, is_alone=is_alone)
    finish = convert = as_type_of(tensor)
    handle = again.start(False, finish)
    if handle is not None:
        return handle
    if splits is not None:

        def finish(handle: Handle) -> Any:
            return convert(handle), list(handle.received_splits)

    with Call(again.engine, kind, again.name, process_set, priority, backend) as call:
        source = call.with_rows(view_input(tensor, call))
        request = call.request(source, None, finish=finish)
        request.splits = (
            call.even_splits(source) if splits is None else call.check_splits(splits, source)
        )
    return again.submit(request)


def alltoall(
    tensor: Any,
    splits: Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    *,
    priority: int = 0,
    engine: Engine | None = None,
    backend: str = "",
) -> Any:
    """Sends each rank its rows of `tensor`, and returns the rows that came, in rank order.

    tensor: shape (n, *rest); `rest` and dtype equal on all ranks.
    splits: rows for each rank, adding up to n; None: n / size each.
    Returns a new array; with `splits` the pair (array, list of the rows from each rank).
    Blocks.  Raises Mismatch if dtype or `rest` differ between ranks, PeerLost if a rank died.
    """
    with WAITING:
        handle = alltoall_async(
            tensor, splits, name, process_set, priority=priority, engine=engine, backend=backend
        )
    return handle.result()


def gather_async(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    *,
    priority: int = 0,
    engine: Engine | None = None,
    backend: str = "",
) -> Handle:
    """Like `gather`, but returns a Handle at once."""
    with Call(engine, Kind.GATHER, name, process_set, priority, backend) as call:
        source = call.with_rows(view_input(tensor, call))
        is_root = call.engine.rank == root_rank
        finish = as_type_of(tensor) if is_root else lambda _: None
        request = call.request(source, None, finish=finish)
        request.root = call.check_rank(root_rank, "root_rank")
    return call.submit(request)


def gather(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    *,
    priority: int = 0,
    engine: Engine | None = None,
    backend: str = "",
) -> Any:
    """Like `allgather`, but only rank `root_rank` gets the result; the others get None."""
    with WAITING:
        handle = gather_async(
            tensor, root_rank, name, process_set, priority=priority, engine=engine, backend=backend
        )
    return handle.result()


def scatter_async(
    tensor: Any,
    root_rank: int,
    splits: Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    *,
    priority: int = 0,
    engine: Engine | None = None,
    backend: str = "",
) -> Handle:
    """Like `scatter`, but returns a Handle at once."""
    with Call(engine, Kind.SCATTER, name, process_set, priority, backend) as call:
        source = call.with_rows(view_input(tensor, call))
        request = call.request(source, None, finish=as_type_of(tensor))
        request.root = call.check_rank(root_rank, "root_rank")
        if call.engine.rank == root_rank:
            request.splits = (
                call.even_splits(source) if splits is None else call.check_splits(splits, source)
            )
    return call.submit(request)


def scatter(
    tensor: Any,
    root_rank: int,
    splits: Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    *,
    priority: int = 0,
    engine: Engine | None = None,
    backend: str = "",
) -> Any:
    """This rank's rows of the tensor that rank `root_rank` has.

    tensor: shape (n, *rest) on the root.  Elsewhere only dtype and `rest` count, so
    numpy.empty((0, *rest), dtype) will do.
    splits: on the root, the rows for each rank, adding up to n; None: n / size each.
    Returns a new array.  Blocks.  Raises Mismatch if dtype or `rest` differ between ranks,
    PeerLost if a rank died.
    """
    with WAITING:
        handle = scatter_async(
            tensor,
            root_rank,
            splits,
            name,
            process_set,
            priority=priority,
            engine=engine,
            backend=backend,
        )
    return handle.result()


def send_async(
    tensor: Any,
    dst: int,
    name: str | None = None,
    *,
    engine: Engine | None = None,
    backend: str = "",
) -> Handle:
    """Like `send`, but returns a Handle at once."""
    with Call(engine, Kind.SEND, name or "", global_process_set, 0, backend) as call:
        call.root = _partner(call, dst, "dst")
        call.name = name or message_name(call.engine, call.engine.rank, dst)
        request = call.request(view_input(tensor, call), None, finish=lambda _: None)
        request.root = call.root
    return call.submit(request)


def send(
    tensor: Any,
    dst: int,
    name: str | None = None,
    *,
    engine: Engine | None = None,
    backend: str = "",
) -> None:
    """Sends `tensor` to rank `dst`, which must call `recv` with the same name, shape and dtype.

    name: None numbers the messages from this rank to `dst` in the order of the calls.
    Returns when `tensor` may be changed.
    Blocks.  Raises Mismatch if shape or dtype differ between the two, PeerLost if a rank died.
    """
    send_async(tensor, dst, name, engine=engine, backend=backend).result()


def recv_async(
    tensor: Any,
    src: int,
    name: str | None = None,
    *,
    engine: Engine | None = None,
    backend: str = "",
) -> Handle:
    """Like `recv`, but returns a Handle at once."""
    with Call(engine, Kind.RECV, name or "", global_process_set, 0, backend) as call:
        call.root = _partner(call, src, "src")
        call.name = name or message_name(call.engine, src, call.engine.rank)
        target = view_output(tensor, call)
        request = call.request(target, target, finish=lambda _: tensor)
        request.root = call.root
    return call.submit(request)


def recv(
    tensor: Any,
    src: int,
    name: str | None = None,
    *,
    engine: Engine | None = None,
    backend: str = "",
) -> Any:
    """Receives into `tensor` what rank `src` sends, and returns it.

    tensor: of the shape and dtype that is sent.
    Blocks.  Raises Mismatch if shape or dtype differ between the two, PeerLost if a rank died.
    """
    return recv_async(tensor, src, name, engine=engine, backend=backend).result()


def message_name(engine: Engine, sender: int, receiver: int) -> str:
    """The number of a message that has no name, of those between the two."""
    return engine.auto_name(f"message.{sender}.{receiver}")


def _partner(call: Call, rank: int, argument: str) -> int:
    if call.check_rank(rank, argument) == call.engine.rank:
        raise InvalidArgument(
            f"{call.kind} on rank {rank}: {argument} is this rank itself. Copy the tensor."
        )
    return rank


def join(device: int = -1, *, engine: Engine | None = None) -> int:
    """Says that this rank has no more work, and waits until every rank has said so.

    Meanwhile the operations of the others go on: a joined rank contributes what changes nothing
    (zero to a sum, no rows to a gather).
    device: accepted for Horovod's sake.
    Returns the rank that joined last.  Raises InvalidArgument at once where an optimizer's method cannot go on.
    """
    call = Call(engine, Kind.JOIN, None, global_process_set, 0)
    if call.engine.refuses_join:
        raise InvalidArgument(f"rank {call.engine.rank} has called join: {call.engine.refuses_join}")
    last = int(call.submit(call.request(None, None)).result().reshape(-1)[0])
    call.engine.joins += 1
    return last
