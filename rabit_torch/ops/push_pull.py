"""BytePS's names of the allreduce, with its arguments in their order."""

from __future__ import annotations

from typing import Any

import torch

from rabit import InvalidArgument
from rabit_torch.compression import Compression
from rabit_torch.ops.collectives import allreduce_async, allreduce_async_
from rabit_torch.ops.differentiable import allreduce
from rabit_torch.ops.handles import TorchHandle

__all__ = [
    "declare",
    "push_pull",
    "push_pull_async",
    "push_pull_async_inplace",
    "push_pull_inplace",
]


def push_pull(
    tensor: torch.Tensor,
    average: bool = True,
    name: str | None = None,
    version: int = 0,
    priority: int = 0,
    compression: Any = Compression.none,
) -> torch.Tensor:
    """Returns the mean of `tensor` over all ranks, or the sum; `allreduce` under the name of BytePS.

    average: False: the sum.  version: BytePS's number of a step, of no use here.  priority: of the forms
    that do not block, where a larger one goes first.
    Differentiable.  Blocks until every rank has called it with the same name; a name that is None is
    numbered.  Raises Mismatch if shape or dtype differ between ranks, PeerLost if a rank or a server
    died.
    """
    return allreduce(tensor, average, name, compression)


def push_pull_async(
    tensor: torch.Tensor,
    average: bool = True,
    name: str | None = None,
    version: int = 0,
    priority: int = 0,
) -> TorchHandle:
    """Like `push_pull`, into a new tensor; returns a handle for `poll` and `synchronize`.

    `tensor` must not change until then.  version: as there.  Does not block.
    """
    return allreduce_async(tensor, average, name, priority=priority)


def push_pull_async_inplace(
    tensor: torch.Tensor,
    average: bool = True,
    name: str | None = None,
    version: int = 0,
    priority: int = 0,
) -> TorchHandle:
    """Like `push_pull_async`, in place.  version: as there.  Does not block."""
    return allreduce_async_(tensor, average, name, priority=priority)


def push_pull_inplace(
    tensor: torch.Tensor,
    average: bool = True,
    name: str | None = None,
    version: int = 0,
    priority: int = 0,
) -> torch.Tensor:
    """Like `push_pull`, in place: returns `tensor`.  version: as there.  Blocks."""
    result: torch.Tensor = push_pull_async_inplace(tensor, average, name, version, priority).wait()
    return result


def declare(name: str, **attributes: str) -> None:
    """Accepts the name of a tensor, which BytePS requires before the first use; does not block.

    attributes: BytePS's, of compression; a strategy compresses here.
    Ranks agree on the names of tensors when they meet, in any order, so nothing has to be kept.
    """
    if not isinstance(name, str) or not name:
        raise InvalidArgument(f"declare: the name of a tensor is {name!r}; it must be a text")
