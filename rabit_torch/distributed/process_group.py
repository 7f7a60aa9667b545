"""ProcessGroup: torch.distributed on rabit's engine."""

# torch's stubs list overloads with other argument names, which no caller uses.
# mypy: disable-error-code="override,assignment,no-untyped-call"

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch

import rabit
from rabit import Kind
from rabit_torch.distributed.exchanges import Exchanges
from rabit_torch.distributed.gathers import Gathers
from rabit_torch.distributed.operands import copying, dense, flat
from rabit_torch.distributed.reductions import Reductions
from rabit_torch.distributed.request_slots import MESSAGE
from rabit_torch.distributed.work import Work, seconds_of
from rabit_torch.tensors import is_row_major

__all__ = ["ProcessGroup"]


class ProcessGroup(Reductions, Gathers, Exchanges):
    """One group of torch.distributed, with all ranks of `engine` in their order.

    Tensors lie in the memory of the CPU or of CUDA and have any type: what cannot be added up still travels as bytes.
    Callers use a group from one thread at a time, and start operations in the same order on all
    ranks.  Operations return at once with a Work.
    """

    def barrier(self, opts: Any = None) -> Work:
        """Completes when every rank has called it."""

        def make(name: str) -> rabit.Request:
            return rabit.Request(Kind.BARRIER, name)

        return self._work(self._start(opts, 1, (Kind.BARRIER,), None, make, (0, 0, 0), None), [])

    def monitored_barrier(
        self, timeout: timedelta | float | None = None, wait_all_ranks: bool = False
    ) -> None:
        """A barrier that says who did not come.  Blocks about `timeout`.

        timeout: None is that of the group; zero lets those pass who find all others there.
        Raises TimedOut that names the first missing rank; with `wait_all_ranks` all of them.
        """
        if self._order.mismatch:
            self._order.refuse("monitored_barrier")
        limit = seconds_of(self._timeout if timeout is None else timeout)
        self._monitored.run(limit, wait_all_ranks)

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
        memory = value if is_row_major(value) else torch.empty_like(value).contiguous()
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
        if self._order.mismatch:
            self._order.refuse("recv from any rank")
        return self.recv(tensors, self._mail.next_sender(tag, self._timeout), tag)
