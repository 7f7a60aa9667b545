"""Row-sparse exchange: of a dense gradient that is zero in most rows, only the other rows travel."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

import torch

import rabit
from rabit import InvalidArgument, ProcessSet, ReduceOp
from rabit.framework import Task, driver_of, finished, printable
from rabit_torch.ops.collected import allgather_async
from rabit_torch.ops.handles import TorchHandle
from rabit_torch.ops.sparse import Members, headed, header_of, indices_of_all, wide
from rabit_torch.parameter_state import ParameterState, SentPart

__all__ = ["RowExchange", "choose_row_sparse"]

# Without names, what is smaller is not worth a look: an exchange of indices costs a round trip.
_LEAST_BYTES = 256 * 1024
# A parameter that is named stays row-sparse unless so many exchanges in a row had to be dense.
_PATIENCE = 3
_DENSE_WARNING = (
    "row_sparse: the gradient of '{name}' had {rows} rows to send in {patience} exchanges running, and "
    "all {all_rows} rows as they are cost fewer bytes, so it travels dense from here on. The dense part of "
    "a table that is tied to an output projection leaves by itself only where the first step shows a "
    "lookup and a matrix product of the parameter itself, in eager mode (not in code that torch.compile "
    "or TorchScript has compiled). Leave the name out of row_sparse. Results are not affected."
)


def choose_row_sparse(
    states: Iterable[ParameterState],
    wanted: bool | Iterable[str],
    prefix: str,
    op: ReduceOp,
    process_set: ProcessSet,
    is_compressed: bool,
) -> None:
    """Gives the states that `wanted` names a RowExchange; True: all that are large enough.

    Raises InvalidArgument for a name that no parameter has, or one with fewer than two dimensions.
    """
    if wanted is False or wanted is None:
        return
    if op not in (ReduceOp.AVERAGE, ReduceOp.SUM):
        raise InvalidArgument(
            f"row_sparse with op {op}: rows that a rank does not send count as zero, which only "
            "Average and Sum allow. Leave row_sparse out"
        )
    if is_compressed:
        raise InvalidArgument(
            "row_sparse sends rows, which a compression written in Python does not know; use "
            "Compression.none, Compression.fp16 or Compression.bf16 with it"
        )
    by_name = {state.name[len(prefix) + 1 :]: state for state in states}
    if isinstance(wanted, str):
        wanted = [wanted]
    names = None if wanted is True else list(wanted)
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
            state.rows = RowExchange(state, op, process_set, names is not None)


class RowExchange:
    """What one parameter needs to send rows.  Used by one thread at a time.

    First the indices of the rows go to all ranks.  From them every rank computes alike whether rows or
    the whole gradient cost fewer bytes, and sends those.  Where a part of the gradient has left early
    (a tied table), all this is about what the gradient has beyond that part.
    """

    def __init__(
        self, state: ParameterState, op: ReduceOp, process_set: ProcessSet, is_named: bool
    ) -> None:
        self._state = state
        self._op = op
        self._process_set = process_set
        self._size = process_set.size()  # shutdown() finishes updates when it cannot be asked for
        self._is_named = is_named
        self._dense_running = 0
        self._indices: TorchHandle | None = None

    def wait_for_indices(self) -> None:
        """Waits until every rank has said which rows it sends; they can leave then."""
        if self._indices is not None:
            self._indices.wait()

    def start(self, codec: Any, priority: int, send_dense: Callable[[], rabit.Handle]) -> Task:
        """Starts the exchange of the gradient, in place.  Does not block.

        codec: of the engine; rows travel in its type if it is one for floating-point numbers.
        priority: of indices and rows.
        send_dense: starts the exchange of the whole gradient in place and returns its handle.
        """
        grad = self._state.grad
        assert grad is not None
        wire_dtype = getattr(codec, "wire_dtype", None) or grad.dtype
        early = self._state.early
        sent = early.take() if early is not None and early.is_agreed else None
        rest = grad.detach()
        if sent is not None and sent.local is not None:
            rest = torch.ne(rest, sent.local)
        touched = rest.flatten(1).any(dim=1).nonzero().reshape(-1)

        def body(_: Task) -> Coroutine[Any, Any, None]:
            return self._exchange(grad, touched, sent, wire_dtype, priority, send_dense)

        task = driver_of(rabit.default_engine()).spawn(body, self._state.name)
        if task.is_done:
            task.outcome()
        return task

    async def _exchange(
        self,
        grad: torch.Tensor,
        touched: torch.Tensor,
        early: SentPart | None,
        wire_dtype: torch.dtype,
        priority: int,
        send_dense: Callable[[], rabit.Handle],
    ) -> None:
        name, local = self._state.name, None if early is None else early.local
        narrow = touched.to(torch.int32) if grad.shape[0] < 1 << 31 else touched
        header = header_of(grad, self._op, 1)
        found = allgather_async(headed(narrow[None], header), f"{name}.indices", self._process_set, priority)
        self._indices = found
        await finished(found.engine_handles)
        members = Members(self._process_set.ranks or range(self._size), rabit.rank())
        (places,) = indices_of_all(name, found.wait().cpu(), header, members).long().to(grad.device)
        with torch.no_grad():
            pays = self.pays(len(places), grad[:1], wire_dtype.itemsize)
            if pays:
                rows = grad.detach().index_select(0, touched)
                if local is not None:
                    rows -= local.index_select(0, touched)
            elif local is not None:
                grad.sub_(local)
        if not pays:
            await finished([send_dense()])
            if early is not None:
                await finished([early.handle])
                (grad if self._state.wire is None else self._state.wire).add_(early.wire)
            return
        found = allgather_async(rows.to(wire_dtype), f"{name}.rows", self._process_set, priority)
        await finished(found.engine_handles)
        if early is not None:
            await finished([early.handle])
        base = None if early is None else early.wire
        self.add_up(grad, base, touched, places, found.wait().to(grad.dtype))

    def pays(self, row_count: int, row: torch.Tensor, wire_bytes: int) -> bool:
        """True if `row_count` rows, of all ranks together, cost fewer bytes than the gradient.

        An allgather brings every rank the rows of the others; a ring allreduce moves the gradient
        twice.  The same factor, (size-1)/size, applies to both.
        """
        all_rows = self._state.parameter.shape[0]
        pays = row_count * row.numel() * wire_bytes < 2 * all_rows * row.numel() * wire_bytes
        early = self._state.early
        if early is None or early.is_decided:  # Before, both uses of a tied table count.
            self._dense_running = 0 if pays else self._dense_running + 1
        if self._dense_running >= (_PATIENCE if self._is_named else 1):
            self._give_up(row_count)
        return pays

    def _give_up(self, row_count: int) -> None:
        state = self._state
        state.rows = None
        if state.early is not None:
            state.early.stop()
            state.early = None
        if self._is_named and rabit.rank() == self._process_set.ranks[0]:
            warnings.warn(
                _DENSE_WARNING.format(
                    name=printable(state.name),
                    rows=row_count,
                    all_rows=state.parameter.shape[0],
                    patience=_PATIENCE,
                ),
                stacklevel=2,
            )

    def add_up(
        self, grad: torch.Tensor, base: Any, own: torch.Tensor, places: Any, rows: Any
    ) -> None:
        """Puts the reduced gradient into `grad`.  Order of the sums: that of ranks.

        base: the reduced early part; None: zero, as all rows of `grad` but `own` are already.
        """
        with torch.no_grad():
            if base is None:
                grad.index_fill_(0, own, 0)
            else:
                grad.copy_(base)
            union, where = torch.unique(places, return_inverse=True)
            is_mean = self._op == ReduceOp.AVERAGE
            rows = wide(rows) if is_mean else rows
            sums = rows.new_zeros(len(union), *rows.shape[1:]).index_add_(0, where, rows)
            if is_mean:
                sums /= self._size
            grad.index_add_(0, union, sums.to(grad.dtype))
