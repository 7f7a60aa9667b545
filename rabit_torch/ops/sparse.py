"""Sparse gradients: the touched rows of every rank, gathered and added up.

The engine compares neither what the rows belong to nor what is done with them. So a header that says it travels with
the indices, and every rank compares those of all ranks before it adds anything up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

import rabit
from rabit import InvalidArgument, Kind, ProcessSet, ReduceOp, Request, global_process_set
from rabit_torch.ops.arguments import auto_name, awaited, group_of
from rabit_torch.ops.collectives import allgather_async
from rabit_torch.ops.handles import JoinedHandle, TorchHandle
from rabit_torch.results import tensor_from
from rabit_torch.tensors import row_major, view

# bfloat16 reaches as far as float32.
_WIDE = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float64,
    **dict.fromkeys((torch.uint8, torch.int8, torch.int16, torch.int32), torch.int64),
}


class Members(NamedTuple):
    """Whose rows are added up, and who says so."""

    ranks: Sequence[int]
    here: int


def allreduce_sparse(
    tensor: torch.Tensor, name: str, op: ReduceOp, process_set: ProcessSet = global_process_set
) -> Any:
    """Starts the reduction of a sparse COO tensor; `wait()` gives the coalesced sparse result.

    Two allgathers carry indices and values; ranks may touch different rows, or none.
    op: Average or Sum.  `wait()` raises Mismatch on every rank if the shapes or ops of ranks differ.
    """
    parts = _parts(name)
    with (
        awaited(Kind.ALLGATHER, parts[0], process_set),
        awaited(Kind.ALLGATHER, parts[1], process_set),
    ):
        if op not in (ReduceOp.AVERAGE, ReduceOp.SUM):
            raise InvalidArgument(
                f"sparse allreduce '{name}': op is {op}, which is not defined for rows that only some ranks have; use "
                "Average or Sum"
            )
        coalesced = tensor.coalesce()
        header = header_of(coalesced, op, coalesced.sparse_dim())
        # In the memory of the host, so that headers are read without a device.
        headed_rows, rows = headed(coalesced.indices(), header).cpu(), coalesced.values()
    places = allgather_async(headed_rows, parts[0], process_set)
    values = allgather_async(rows, parts[1], process_set)
    members = Members(process_set.ranks or range(process_set.size()), rabit.rank())
    shape = tensor.shape

    def finish() -> torch.Tensor:
        return _added_up(name, places.wait(), values.wait(), shape, header, members)

    both = rabit.GroupHandle([*places.engine_handles, *values.engine_handles])
    return JoinedHandle((both,), finish)


def refuse_sparse(name: str, reason: str, process_set: ProcessSet) -> None:
    """Tells the ranks that wait in `allreduce_sparse` why this one does not come."""
    engine, group = rabit.default_engine(), group_of(process_set)
    for part in _parts(name):
        full_name = auto_name(Kind.ALLGATHER, part, process_set)
        engine.refuse(Request(Kind.ALLGATHER, full_name, group=group), reason)


def _parts(name: str) -> list[str]:
    """The names of the two allgathers."""
    return [f"{name}.indices", f"{name}.values"]


def header_of(tensor: torch.Tensor, op: ReduceOp, sparse_dim: int) -> list[int]:
    """What must be equal on all ranks: for which op, and of which shape."""
    return [op, tensor.dim(), sparse_dim, *tensor.shape]


def headed(indices: torch.Tensor, header: list[int]) -> torch.Tensor:
    """How many rows, the header, and then their indices, one row for each sparse dimension."""
    return torch.cat([indices.new_tensor([indices.shape[1], *header]), indices.t().reshape(-1)])


def indices_of_all(name: str, said: torch.Tensor, own: list[int], members: Members) -> torch.Tensor:
    """The indices out of what `headed` gave on all ranks.  Raises Mismatch on every rank if headers differ."""
    found, headers, at = [], [], 0
    while at < len(said):  # Ranks that have joined say nothing.
        count, _, dim, sparse_dim = said[at : at + 4].tolist()
        start = at + 4 + dim
        headers.append(said[at + 1 : start].tolist())
        at = start + count * sparse_dim
        found.append(said[start:at].view(count, sparse_dim))
    for position, other in enumerate(headers):
        if other == own:
            continue
        rank = members.ranks[position] if len(headers) == len(members.ranks) else -1
        where = "on another rank" if rank < 0 else f"on rank {rank}"
        if other[1:] != own[1:]:
            what = f"shapes differ: {_shape_text(own)} here, {_shape_text(other)} {where}"
            advice = "Build the model the same way on every rank"
        else:
            ops = f"{ReduceOp(own[0])} here, {ReduceOp(other[0])} {where}"
            what = f"reduce operations differ: {ops}"
            advice = "Pass the same op on every rank"
        text = f"sparse allreduce '{name}' on rank {members.here}: {what}. {advice} (errors.md#mismatch)."
        raise rabit.Mismatch(text, rank)
    return torch.cat(found).t()


def _shape_text(header: list[int]) -> str:
    _, _, sparse_dim, *extents = header
    return f"{extents} with {sparse_dim} sparse dimension{'s' if sparse_dim != 1 else ''}"


def wide(rows: torch.Tensor) -> torch.Tensor:
    """Rows in a type that holds the sum of which their mean is taken: it fits where the sum may not."""
    return rows.to(_WIDE.get(rows.dtype, rows.dtype))


def _added_up(
    name: str,
    said: torch.Tensor,
    rows: torch.Tensor,
    shape: torch.Size,
    header: list[int],
    members: Members,
) -> torch.Tensor:
    """The rows of all ranks, added up and divided; integers truncate toward zero, as dense ones."""
    places = indices_of_all(name, said, header, members).to(rows.device)
    is_mean = header[0] == ReduceOp.AVERAGE and len(members.ranks) > 1
    summed = wide(rows) if is_mean else rows
    total = torch.sparse_coo_tensor(places, summed, shape, check_invariants=False).coalesce()
    if not is_mean:
        return total
    is_exact = rows.is_floating_point() or rows.is_complex()
    mode = None if is_exact else "trunc"
    mean = torch.div(total.values(), len(members.ranks), rounding_mode=mode).to(rows.dtype)
    return torch.sparse_coo_tensor(
        total.indices(), mean, shape, check_invariants=False, is_coalesced=True
    )


def allreduce_sparse_on(
    lines: Any, engine: rabit.Engine, tensor: torch.Tensor, op: ReduceOp
) -> tuple[list[rabit.Handle], Any]:
    """Starts the sum of a sparse tensor over the ranks of `engine`: (handles, result)."""
    if op not in (ReduceOp.AVERAGE, ReduceOp.SUM):
        raise InvalidArgument(f"allreduce of a sparse tensor with {op}; use SUM or AVG")
    coalesced = tensor.detach().coalesce()
    values, header = row_major(coalesced.values()), header_of(coalesced, op, coalesced.sparse_dim())

    def gather(part: str, rows: torch.Tensor) -> rabit.Handle:
        def make(name: str) -> rabit.Request:
            return rabit.Request(Kind.ALLGATHER, name, view(rows, name))

        handle: rabit.Handle = lines.submit(("sparse", part, rows.dtype), None, make, None, rows)
        return handle

    handles = [gather("indices", headed(coalesced.indices(), header)), gather("values", values)]

    def result() -> torch.Tensor:
        rows = tensor_from(handles[1], values)
        said = torch.from_numpy(handles[0].result())
        members = Members(range(engine.size), engine.rank)
        return _added_up(handles[0].name, said, rows, tensor.shape, header, members)

    return handles, result


def sparse_allreduce_async(
    tensor: torch.Tensor,
    name: str,
    op: ReduceOp = rabit.Average,
    process_set: ProcessSet = global_process_set,
) -> TorchHandle:
    """Starts the allreduce of a sparse COO tensor; the handle's result is sparse.  Does not block."""
    handle: TorchHandle = allreduce_sparse(tensor, name, op, process_set)
    return handle
