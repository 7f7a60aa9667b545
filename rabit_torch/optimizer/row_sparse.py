"""Row-sparse exchange: of a dense gradient that is zero in most rows, only the other rows travel."""

from __future__ import annotations

import warnings
from collections.abc import Coroutine, Iterable, Iterator
from typing import Any

import torch

import rabit
from rabit import CompressionCodec, InvalidArgument, ReduceOp
from rabit.framework import Task, driver_of, finished, printable
from rabit_torch.ops.collectives import allgather_async
from rabit_torch.ops.handles import TorchHandle
from rabit_torch.ops.sparse import Members, headed, header_of, indices_of_all, wide
from rabit_torch.optimizer.requests import Reduction
from rabit_torch.optimizer.route_queue import RouteQueue
from rabit_torch.optimizer.routes import Plain
from rabit_torch.parameter_state import ParameterState

__all__ = ["RowSparse", "Rows"]

# Without names, what is smaller is not worth a look: an exchange of indices costs a round trip.
_LEAST_BYTES = 256 * 1024
# A parameter that is named stays row-sparse unless so many exchanges in a row had to be dense.
_PATIENCE = 3
_DENSE_WARNING = (
    "row_sparse: the gradient of '{name}' had {rows} rows to send in {patience} exchanges running, and "
    "all {all_rows} rows as they are cost fewer bytes, so it travels dense from here on. A table that is tied "
    "to an output projection has no zero rows. Leave the name out of row_sparse. Results are not affected."
)


class RowSparse:
    """Which parameters send rows: an argument of DistributedOptimizer, against the parameters that there are.

    Raises InvalidArgument for a name that no parameter has, or one with fewer than two dimensions.
    """

    def __init__(self, states: Iterable[ParameterState], prefix: str, reduction: Reduction) -> None:
        """prefix: of all names."""
        self._chosen: frozenset[int] = frozenset()  # the indices of those that do
        self._is_named = reduction.row_sparse is not True
        if reduction.row_sparse is not False and reduction.row_sparse is not None:
            _check(reduction)
            self._chosen = frozenset(_chosen(states, prefix, reduction.row_sparse))

    def route(
        self, state: ParameterState, codec: CompressionCodec, queue: RouteQueue
    ) -> Rows | None:
        """That of `state`; None: it sends all rows."""
        return (
            Rows(state, codec, queue, is_named=self._is_named)
            if state.index in self._chosen
            else None
        )


def _check(reduction: Reduction) -> None:
    if reduction.op not in (ReduceOp.AVERAGE, ReduceOp.SUM):
        raise InvalidArgument(
            f"row_sparse with op {reduction.op}: rows that a rank does not send count as zero, which only "
            "Average and Sum allow. Leave row_sparse out"
        )
    if reduction.compressor is not None:
        raise InvalidArgument(
            "row_sparse sends rows, which a compression written in Python does not know; use "
            "Compression.none, Compression.fp16 or Compression.bf16 with it"
        )


def _chosen(
    states: Iterable[ParameterState], prefix: str, wanted: bool | Iterable[str]
) -> Iterator[int]:
    """wanted: names; True: all that are large enough."""
    by_name = {state.name[len(prefix) + 1 :]: state for state in states}
    if isinstance(wanted, str):
        wanted = [wanted]
    names = None if isinstance(wanted, bool) else list(wanted)
    strangers = sorted(set(names or ()) - set(by_name))
    if strangers:
        raise InvalidArgument(
            f"row_sparse names {', '.join(map(repr, strangers[:5]))}, which no parameter of the "
            "optimizer has; use the names of named_parameters"
        )
    for name, state in by_name.items():
        parameter = state.parameter
        if names is not None and name in names and parameter.dim() < 2:
            raise InvalidArgument(
                f"row_sparse names '{name}', which has shape {tuple(parameter.shape)}; rows need at "
                "least two dimensions"
            )
        large = parameter.dim() == 2 and state.bytes >= _LEAST_BYTES
        if name in names if names is not None else large:
            yield state.index


class Rows(Plain):
    """Only the rows of a dense gradient that are not zero travel.

    First the indices of the rows go to all ranks.  From them every rank computes alike whether rows or
    the whole gradient cost fewer bytes, and sends those.
    """

    __slots__ = ("_dense_running", "_indices", "_is_dense", "_is_named", "_size")

    may_pack = False

    def __init__(
        self, state: ParameterState, codec: CompressionCodec, queue: RouteQueue, *, is_named: bool
    ) -> None:
        """is_named: the user has named the parameter, and rows are tried a few times."""
        super().__init__(state, codec, queue)
        # shutdown() finishes updates when the size cannot be asked for
        self._size = queue.requests.reduction.process_set.size()
        self._is_named = is_named
        self._is_dense = False  # for good
        self._dense_running = 0
        self._indices: TorchHandle | None = None

    def wait_for_indices(self) -> None:
        """Waits until every rank has said which rows it sends; they can leave then."""
        if self._indices is not None:
            self._indices.wait()

    def start(self, grad: torch.Tensor) -> None:
        if self._is_dense:
            super().start(grad)
            return
        touched = grad.detach().flatten(1).any(dim=1).nonzero().reshape(-1)

        def body(_: Task) -> Coroutine[Any, Any, None]:
            return self._exchange(grad, touched)

        self.handle = driver_of(self._queue.requests.engine).spawn(body, self.state.name)
        self._queue.two_stage.append(self)
        if self.handle.is_done:
            self.handle.outcome()

    async def _exchange(self, grad: torch.Tensor, touched: torch.Tensor) -> None:
        requests, name = self._queue.requests, self.state.name
        op, process_set = requests.reduction.op, requests.reduction.process_set
        priority = requests.priority(self.state)
        wire_dtype = getattr(self.codec, "wire_dtype", None) or grad.dtype
        narrow = touched.to(torch.int32) if grad.shape[0] < 1 << 31 else touched
        header = header_of(grad, op, 1)
        found = allgather_async(
            headed(narrow[None], header), f"{name}.indices", process_set, priority
        )
        self._indices = found
        await finished(found.engine_handles)
        members = Members(process_set.ranks or range(self._size), rabit.rank())
        (places,) = indices_of_all(name, found.wait().cpu(), header, members).long().to(grad.device)
        if not self._pays(len(places), grad[:1], wire_dtype.itemsize):
            await finished([self._queue.submit(self, self._wire_of(grad))])
            return
        rows = grad.detach().index_select(0, touched)
        found = allgather_async(rows.to(wire_dtype), f"{name}.rows", process_set, priority)
        await finished(found.engine_handles)
        self._add_up(grad, touched, places, found.wait().to(grad.dtype))

    def _pays(self, row_count: int, row: torch.Tensor, wire_bytes: int) -> bool:
        """True if `row_count` rows, of all ranks together, cost fewer bytes than the gradient.

        An allgather brings every rank the rows of the others; a ring allreduce moves the gradient
        twice.  The same factor, (size-1)/size, applies to both.
        """
        all_rows = self.state.parameter.shape[0]
        pays = row_count * row.numel() * wire_bytes < 2 * all_rows * row.numel() * wire_bytes
        self._dense_running = 0 if pays else self._dense_running + 1
        if self._dense_running >= (_PATIENCE if self._is_named else 1):
            self._give_up(row_count)
        return pays

    def _give_up(self, row_count: int) -> None:
        self._is_dense = True
        if self._is_named and rabit.rank() == self._queue.requests.reduction.process_set.ranks[0]:
            warnings.warn(
                _DENSE_WARNING.format(
                    name=printable(self.state.name),
                    rows=row_count,
                    all_rows=self.state.parameter.shape[0],
                    patience=_PATIENCE,
                ),
                stacklevel=2,
            )

    def _add_up(self, grad: torch.Tensor, own: torch.Tensor, places: Any, rows: Any) -> None:
        """Puts the reduced gradient into `grad`, whose rows but `own` are zero.  Order of the sums: that of ranks."""
        with torch.no_grad():
            grad.index_fill_(0, own, 0)
            union, where = torch.unique(places, return_inverse=True)
            is_mean = self._queue.requests.reduction.op == ReduceOp.AVERAGE
            rows = wide(rows) if is_mean else rows
            sums = rows.new_zeros(len(union), *rows.shape[1:]).index_add_(0, where, rows)
            if is_mean:
                sums /= self._size
            grad.index_add_(0, union, sums.to(grad.dtype))
