"""ProcessGroup: torch.distributed on rabit's engine."""

# torch's stubs list overloads with other argument names, which no caller uses.
# mypy: disable-error-code="override,assignment,no-untyped-call"

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

import rabit
from rabit import DType, Kind, ReduceOp, TensorView
from rabit_torch.distributed.call_order import CallOrder
from rabit_torch.distributed.late_ranks import MonitoredBarrier
from rabit_torch.distributed.messages import Mail
from rabit_torch.distributed.operands import copying, dense, flat, op_of, real
from rabit_torch.distributed.request_slots import MESSAGE, Lines
from rabit_torch.distributed.work import Work
from rabit_torch.ops.sparse import allreduce_sparse_on
from rabit_torch.tensors import _DTYPES, memory_order

__all__ = ["ProcessGroup"]


class ProcessGroup(dist.ProcessGroup):
    """One group of torch.distributed, with all ranks of `engine` in their order.

    Tensors lie in CPU memory and have any type: what cannot be added up still travels as bytes.
    Callers use a group from one thread at a time, and start operations in the same order on all
    ranks.  Operations return at once with a Work.
    """

    def __init__(
        self, engine: rabit.Engine, store: Any, timeout: timedelta, name: str, owns_engine: bool
    ) -> None:
        super().__init__(engine.rank, engine.size)  # type: ignore[call-arg]
        self._engine = engine
        self._store = store
        self._timeout = timeout
        self._owns_engine = owns_engine
        self._order = CallOrder(store, engine.rank, engine.size, name)
        self._lines = Lines(engine, f"c10d.{name}", self._order)
        self._name = name
        self._description = ""
        self._monitored = MonitoredBarrier(store, engine.rank, engine.size)
        self._mail = Mail(store, engine.rank, engine.size)
        self._collected: list[Work] | None = None
        if owns_engine:
            atexit.register(self._end_at_exit)

    # --- what torch.distributed asks about a group ------------------------------------------------

    def getBackendName(self) -> str:
        """The name for init_process_group."""
        return "rabit"

    def name(self) -> str:
        """The name for init_process_group."""
        return "rabit"

    def rank(self) -> int:
        """Rank of this process in the group."""
        return self._engine.rank

    def size(self) -> int:
        """Number of ranks of the group."""
        return self._engine.size

    # C++ asks by method, Python by property; torch's own answers need a backend in C++.
    def getGroupName(self) -> str:
        """The name under which torch.distributed knows the group."""
        return self._name

    def setGroupName(self, group_name: str) -> None:
        """Called by torch.distributed."""
        self._name = group_name

    def getGroupDesc(self) -> str:
        """What the group is for."""
        return self._description

    def setGroupDesc(self, group_desc: str) -> None:
        """Called by torch.distributed."""
        self._description = group_desc

    group_name = property(getGroupName)
    group_desc = property(getGroupDesc)

    @property
    def _device_types(self) -> list[torch.device]:
        """Where tensors may lie; torch's checkpoints and state dictionaries ask."""
        return [torch.device("cpu")]

    def _get_backend(self, device: torch.device) -> ProcessGroup:
        """The group is its own backend."""
        return self

    def set_timeout(self, timeout: timedelta) -> None:
        """Sets how long `wait` waits unless it is told."""
        self._timeout = timeout

    def shutdown(self) -> None:
        """Ends the group.  An engine that rabit.init() has started stays."""
        if self._owns_engine:
            atexit.unregister(self._end_at_exit)
            self._engine.close()

    def abort(self) -> None:
        """Ends the group without waiting for the other ranks."""
        if self._owns_engine:
            atexit.unregister(self._end_at_exit)
            self._engine.close(0.0)

    def _end_at_exit(self) -> None:
        # After an unhandled exception the others learn soonest by losing this rank, and what its end
        # then finds is a consequence that would only bury the exception.
        has_failed = getattr(sys, "last_value", None) is not None
        try:
            self._engine.close(0.0 if has_failed else 30.0)
        except rabit.RabitError as error:
            if not has_failed:
                print(f"rabit: at exit: {error}", file=sys.stderr)

    def _start_coalescing(self, device: Any) -> None:
        self._collected = []

    def _end_coalescing(self, device: Any) -> Work:
        works, self._collected = self._collected or [], None

        def finish() -> None:
            for work in works:
                work.wait()

        return self._work([handle for work in works for handle in work._open], [], finish)

    def _work(
        self, handles: list[rabit.Handle], outputs: list[Any], finish: Any = None, source: int = -1
    ) -> Work:
        work = Work(self._engine, handles, outputs, finish, self._timeout, self._order, source)
        if self._collected is not None:
            self._collected.append(work)
        return work

    def _start(
        self,
        opts: Any,
        count: int,
        key: tuple[Any, ...],
        variant: Any,
        make: Callable[[str], rabit.Request],
        pointers: tuple[int, int] | None,
        keepalive: Any,
    ) -> list[rabit.Handle]:
        """Starts one of the `count` operations of a call; what is to be waited for.

        Callers that torch has wait as soon as the call returns have it run in their own thread.
        """
        waits = count == 1 and self._collected is None and not getattr(opts, "asyncOp", True)
        if waits:
            return self._lines.finish(key, variant, make, pointers, keepalive)
        return [self._lines.submit(key, variant, make, pointers, keepalive)]

    # --- reductions -------------------------------------------------------------------------------

    def allreduce(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> Work:
        """Reduces every tensor in place; the result is equal on all ranks."""
        op = ReduceOp.SUM if opts is None else op_of(opts)
        if any(tensor.is_sparse for tensor in tensors):
            return self._allreduce_sparse(tensors, op)
        return self._reduced(Kind.ALLREDUCE, tensors, op, -1, opts)

    def allreduce_coalesced(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> Work:
        """The same as `allreduce`: the engine fuses what becomes ready together."""
        return self.allreduce(tensors, opts)

    def reduce(self, tensors: Sequence[torch.Tensor], opts: Any) -> Work:
        """Reduces every tensor in place on the root; the others keep theirs."""
        return self._reduced(Kind.REDUCE, tensors, op_of(opts), opts.rootRank, opts)

    def _reduced(
        self,
        kind: Kind,
        tensors: Sequence[torch.Tensor],
        op: ReduceOp,
        root: int,
        opts: Any = None,
    ) -> Work:
        handles: list[rabit.Handle] = []
        copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        receives = root in (-1, self._engine.rank)
        for tensor in tensors:
            value = real(tensor, kind, op)
            memory = memory_order(value)
            if memory is None:
                memory = value.detach().contiguous()
                copies.append((value.detach(), memory))
            target = memory if receives else torch.empty_like(memory)
            pointers = (memory.data_ptr(), target.data_ptr())
            count, dtype = memory.numel(), _DTYPES[memory.dtype]

            def make(
                name: str,
                places: tuple[int, int] = pointers,
                count: int = count,
                dtype: DType = dtype,
            ) -> rabit.Request:
                source, result = (TensorView(place, (count,), dtype) for place in places)
                return rabit.Request(kind, name, source, result, op, root)

            key, variant, owners = (kind, count, dtype), (op, root), (memory, target)
            handles += self._start(opts, len(tensors), key, variant, make, pointers, owners)

        def finish() -> None:
            for value, memory in copies:
                value.copy_(memory)

        return self._work(handles, list(tensors), finish if copies and receives else None)

    def _allreduce_sparse(self, tensors: Sequence[torch.Tensor], op: ReduceOp) -> Work:
        started = [allreduce_sparse_on(self._lines, self._engine, each, op) for each in tensors]

        def finish() -> None:
            with torch.no_grad():  # A detached sparse tensor would not share what it is given.
                for tensor, (_, result) in zip(tensors, started, strict=True):
                    tensor.copy_(result())

        handles = [handle for each, _ in started for handle in each]
        return self._work(handles, list(tensors), finish)

    def reduce_scatter_single(
        self, output: torch.Tensor, input: torch.Tensor, opts: Any = None
    ) -> Work:
        """Reduces `input` (size equal parts) and gives each rank its part in `output`."""
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    def reduce_scatter_single_coalesced(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any = None
    ) -> Work:
        """`reduce_scatter_single` of several pairs."""
        op = ReduceOp.SUM if opts is None else op_of(opts)
        handles: list[rabit.Handle] = []
        copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        for output, source in zip(outputs, inputs, strict=True):
            part, whole = output.detach(), dense(source)
            if whole.is_complex():
                part, whole = torch.view_as_real(part), torch.view_as_real(whole)
            self._check_parts("reduce_scatter", whole, part)
            memory = part if part.is_contiguous() else torch.empty_like(part).contiguous()
            if memory is not part:
                copies.append((part, memory))
            rows = flat(whole, (self._engine.size, part.numel()))
            handles += self._direct(opts, len(outputs), Kind.REDUCESCATTER, rows, memory, whole, op)
        return self._work(handles, list(outputs), copying(copies))

    def reduce_scatter(
        self,
        outputs: Sequence[torch.Tensor],
        input_lists: Sequence[Sequence[torch.Tensor]],
        opts: Any = None,
    ) -> Work:
        """Reduces the list of tensors and gives each rank the one of its number."""
        (output,), (parts,) = outputs, input_lists
        whole = torch.cat([dense(each).reshape(-1) for each in parts])
        if all(each.numel() == output.numel() for each in parts):
            return self.reduce_scatter_single(output, whole, opts)
        op = ReduceOp.SUM if opts is None else op_of(opts)
        everything = self._reduced(Kind.ALLREDUCE, [whole], op, -1)
        first = sum(each.numel() for each in parts[: self._engine.rank])

        def finish() -> None:
            mine = whole[first : first + output.numel()]
            output.detach().copy_(mine.reshape(output.shape))

        return self._work(everything._open, [output], finish)

    # --- gathers ----------------------------------------------------------------------------------

    def all_gather_single(
        self, output: torch.Tensor, input: torch.Tensor, opts: Any = None
    ) -> Work:
        """Joins the `input` of all ranks, in rank order, in `output`."""
        return self.all_gather_single_coalesced([output], [input], opts)

    def all_gather_single_coalesced(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any = None
    ) -> Work:
        """`all_gather_single` of several pairs."""
        handles: list[rabit.Handle] = []
        copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        for output, source in zip(outputs, inputs, strict=True):
            whole, mine = output.detach(), dense(source)
            self._check_parts("all_gather", whole, mine)
            memory = whole if whole.is_contiguous() else torch.empty_like(whole).contiguous()
            if memory is not whole:
                copies.append((whole, memory))
            handles += self._direct(opts, len(outputs), Kind.ALLGATHER, flat(mine), memory, mine)
        return self._work(handles, list(outputs), copying(copies))

    def allgather(
        self,
        output_lists: Sequence[Sequence[torch.Tensor]],
        inputs: Sequence[torch.Tensor],
        opts: Any = None,
    ) -> Work:
        """Gives every rank the tensors of all; their shapes may differ from rank to rank."""
        handles: list[rabit.Handle] = []
        copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        for outputs, source in zip(output_lists, inputs, strict=True):
            mine = dense(source)
            total = sum(each.numel() for each in outputs)
            whole = torch.empty(total, dtype=mine.dtype)
            handles += self._direct(opts, len(inputs), Kind.ALLGATHER, flat(mine), whole, mine)
            parts = whole.split([each.numel() for each in outputs])
            copies.extend(
                (each.detach(), part.reshape(each.shape))
                for each, part in zip(outputs, parts, strict=True)
            )
        return self._work(handles, [list(each) for each in output_lists], copying(copies))

    def allgather_coalesced(
        self,
        output_lists: Sequence[Sequence[torch.Tensor]],
        inputs: Sequence[torch.Tensor],
        opts: Any = None,
    ) -> Work:
        """`allgather` of several tensors; output_lists[rank][index]."""
        return self.allgather(list(zip(*output_lists, strict=True)), inputs, opts)

    def gather(
        self,
        output_lists: Sequence[Sequence[torch.Tensor]],
        inputs: Sequence[torch.Tensor],
        opts: Any,
    ) -> Work:
        """Gives the root the tensors of all ranks, which have one shape."""
        (source,) = inputs
        mine = dense(source)
        is_root = opts.rootRank == self._engine.rank
        outputs = list(output_lists[0]) if is_root else []
        whole = torch.empty(mine.numel() * self._engine.size if is_root else 0, dtype=mine.dtype)
        view = flat(mine)
        key = (Kind.GATHER, view.count, view.dtype)
        target = flat(whole) if is_root else None

        def make(name: str) -> rabit.Request:
            return rabit.Request(Kind.GATHER, name, view, target, root=opts.rootRank)

        handles = self._start(opts, 1, key, None, make, None, (mine, whole))
        parts = whole.split(mine.numel()) if is_root and mine.numel() else []
        copies = [
            (each.detach(), part.reshape(each.shape))
            for each, part in zip(outputs, parts, strict=False)
        ]
        return self._work(handles, outputs, copying(copies))

    # --- scatters and exchanges -------------------------------------------------------------------

    def broadcast(self, tensors: Sequence[torch.Tensor], opts: Any) -> Work:
        """Gives every rank the tensors of the root."""
        handles: list[rabit.Handle] = []
        copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        root = opts.rootRank
        for tensor in tensors:
            value = tensor.detach()
            memory = dense(value)
            if memory.data_ptr() != value.data_ptr():
                copies.append((value, memory))
            view = flat(memory)

            def make(name: str, view: TensorView = view) -> rabit.Request:
                return rabit.Request(Kind.BROADCAST, name, view, view, root=root)

            key = (Kind.BROADCAST, view.count, view.dtype)
            pointers = (view.data, view.data)
            handles += self._start(opts, len(tensors), key, root, make, pointers, memory)
        return self._work(handles, list(tensors), copying(copies))

    def scatter(
        self,
        outputs: Sequence[torch.Tensor],
        input_lists: Sequence[Sequence[torch.Tensor]],
        opts: Any,
    ) -> Work:
        """Gives each rank the tensor of its number in the root's list; all have one shape."""
        (output,) = outputs
        is_root = opts.rootRank == self._engine.rank
        parts = [dense(each).reshape(-1) for each in input_lists[0]] if is_root else []
        whole = torch.cat(parts) if is_root else torch.empty(0, dtype=output.dtype)
        width = output.numel()
        memory = torch.empty(width, dtype=output.dtype)
        view = flat(whole, (self._engine.size if is_root else 0, width))
        splits = [1] * self._engine.size if is_root else None
        target = flat(memory)

        def make(name: str) -> rabit.Request:
            return rabit.Request(
                Kind.SCATTER, name, view, target, root=opts.rootRank, splits=splits
            )

        key = (Kind.SCATTER, target.count, target.dtype)
        handles = self._start(opts, 1, key, None, make, None, (whole, memory))
        return self._work(
            handles, [output], copying([(output.detach(), memory.reshape(output.shape))])
        )

    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_split_sizes: Sequence[int] | None,
        input_split_sizes: Sequence[int] | None,
        opts: Any = None,
    ) -> Work:
        """Sends rows of `input` to every rank and puts the rows received into `output`."""
        source = dense(input)
        width = source[0].numel() if source.shape[0] else output.detach()[:1].numel()
        memory = output.detach()
        if not memory.is_contiguous():
            memory = torch.empty(output.shape, dtype=output.dtype)
        view = flat(source, (source.shape[0], width))
        splits = list(input_split_sizes or []) or self._even(source.shape[0])
        handles = self._exchange(opts, view, splits, memory, source)
        copies = [] if memory.data_ptr() == output.data_ptr() else [(output.detach(), memory)]
        return self._work(handles, [output], copying(copies))

    def alltoall(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any = None
    ) -> Work:
        """Sends inputs[r] to rank r and receives outputs[r] from it."""
        source = torch.cat([dense(each).reshape(-1) for each in inputs])
        memory = torch.empty(sum(each.numel() for each in outputs), dtype=source.dtype)
        view = flat(source, (source.numel(), 1))
        splits = [each.numel() for each in inputs]
        handles = self._exchange(opts, view, splits, memory, source)
        parts = memory.split([each.numel() for each in outputs])
        copies = [
            (each.detach(), part.reshape(each.shape))
            for each, part in zip(outputs, parts, strict=True)
        ]
        return self._work(handles, list(outputs), copying(copies))

    def _exchange(
        self,
        opts: Any,
        view: TensorView,
        splits: list[int],
        memory: torch.Tensor,
        source: torch.Tensor,
    ) -> list[rabit.Handle]:
        target = flat(memory)

        def make(name: str) -> rabit.Request:
            return rabit.Request(Kind.ALLTOALL, name, view, target, splits=splits)

        key = (Kind.ALLTOALL, view.dtype)
        return self._start(opts, 1, key, None, make, None, (source, memory))

    def barrier(self, opts: Any = None) -> Work:
        """Completes when every rank has called it."""

        def make(name: str) -> rabit.Request:
            return rabit.Request(Kind.BARRIER, name)

        return self._work(self._start(opts, 1, (Kind.BARRIER,), None, make, (0, 0), None), [])

    def monitored_barrier(
        self, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        """A barrier that says who did not come.  Blocks about `timeout`.

        timeout: None is that of the group; zero lets those pass who find all others there.
        Raises TimedOut that names the first missing rank; with `wait_all_ranks` all of them.
        """
        limit = self._timeout if timeout is None else timeout
        self._monitored.run(limit, wait_all_ranks)

    # --- messages ---------------------------------------------------------------------------------

    def send(self, tensors: Sequence[torch.Tensor], dst: int, tag: int = 0) -> Work:
        """Sends a tensor to rank `dst` of the group, which receives with the same tag."""
        (tensor,) = tensors
        memory = dense(tensor)
        view = flat(memory)

        def make(name: str) -> rabit.Request:
            return rabit.Request(Kind.SEND, name, view, None, root=dst)

        key = (MESSAGE, self._engine.rank, dst, tag)
        self._mail.sent(dst, tag)
        return self._work([self._lines.submit(key, None, make, None, memory)], [tensor])

    def recv(self, tensors: Sequence[torch.Tensor], src: int, tag: int = 0) -> Work:
        """Receives into a tensor from rank `src` of the group."""
        (tensor,) = tensors
        value = tensor.detach()
        memory = value if value.is_contiguous() else torch.empty_like(value).contiguous()
        view = flat(memory)

        def make(name: str) -> rabit.Request:
            return rabit.Request(Kind.RECV, name, view, view, root=src)

        key = (MESSAGE, src, self._engine.rank, tag)
        self._mail.received(src, tag)
        handle = self._lines.submit(key, None, make, None, memory)
        copies = [] if memory is value else [(value, memory)]
        return self._work([handle], [tensor], copying(copies), src)

    def recv_anysource(self, tensors: Sequence[torch.Tensor], tag: int = 0) -> Work:
        """Receives from whichever rank sends next with this tag.  Blocks until one has sent."""
        return self.recv(tensors, self._mail.next_sender(tag, self._timeout), tag)

    # --- shared -----------------------------------------------------------------------------------

    def _direct(
        self,
        opts: Any,
        count: int,
        kind: Kind,
        source: TensorView,
        memory: torch.Tensor,
        keepalive: torch.Tensor,
        op: ReduceOp = ReduceOp.SUM,
    ) -> list[rabit.Handle]:
        """Starts one of `count` operations whose result the engine writes into `memory`."""
        target = flat(memory)

        def make(name: str) -> rabit.Request:
            return rabit.Request(kind, name, source, target, op)

        # The size of the result is equal on all ranks where that of the input is not.
        size = target.count if kind == Kind.ALLGATHER else source.count
        key = (kind, size, source.dtype)
        variant = (op, source.shape)
        pointers = (source.data, target.data)
        return self._start(opts, count, key, variant, make, pointers, (keepalive, memory))

    def _check_parts(self, what: str, whole: torch.Tensor, part: torch.Tensor) -> None:
        size = self._engine.size
        if whole.numel() != part.numel() * size or whole.dtype != part.dtype:
            raise rabit.InvalidArgument(
                f"{what} on rank {self._engine.rank}: {whole.dtype}[{whole.numel()}] is not {size} "
                f"parts of {part.dtype}[{part.numel()}]; make the whole tensor {size} times the part"
            )

    def _even(self, rows: int) -> list[int]:
        size = self._engine.size
        if rows % size:
            raise rabit.InvalidArgument(
                f"all_to_all_single on rank {self._engine.rank}: {rows} rows cannot be divided "
                f"evenly among {size} ranks; pass input_split_sizes"
            )
        return [rows // size] * size

    # Older names for the same operations.
    _allgather_base = all_gather_single
    _reduce_scatter_base = reduce_scatter_single
    alltoall_base = all_to_all_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
