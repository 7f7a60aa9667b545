"""ParameterState: what is known of one parameter between its gradient and its update."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from rabit import CompressionCodec
    from rabit_torch.optimizer.packs import Pack
    from rabit_torch.optimizer.row_sparse import RowExchange
    from rabit_torch.overlap.partial_step import HyperParameters
    from rabit_torch.overlap.tied import EarlyPart

__all__ = ["ParameterState"]


class ParameterState:
    """One parameter: its gradient on the way, and the update that waits for it.

    sent: `grad` is set.  Committed: `step()` has been called, `hyper_parameters` is set, and the
    update happens when the parameter is read.  The modes of overlap differ only in when they wait.
    """

    __slots__ = (
        "bytes",
        "codec",
        "context",
        "early",
        "grad",
        "group",
        "handle",
        "hook",
        "hyper_parameters",
        "in_pack",
        "index",
        "is_dense",
        "is_guarded",
        "is_seen",
        "is_watched",
        "may_pack",
        "name",
        "owner",
        "pack",
        "param_group",
        "parameter",
        "passes_left",
        "place",
        "priority",
        "rows",
        "slot",
        "sparse_dim",
        "two_halves",
        "was_absent",
        "wire",
    )

    def __init__(self, parameter: torch.Tensor, name: str, index: int, group: int | None) -> None:
        self.parameter = parameter
        self.name = name
        self.index = index
        self.group = group  # of gradients that travel together
        self.bytes = parameter.numel() * parameter.element_size()
        self.passes_left = 1
        self.hook: Any = None
        self.grad: torch.Tensor | None = None  # the gradient that was sent in this step
        self.wire: torch.Tensor | None = None  # what travels for it; often the same memory
        self.context: Any = None  # of a compression in Python
        self.handle: Any = None
        self.two_halves: Any = None  # its ScatterGather, where gradients travel so
        self.slot: Any = None  # if a strategy exchanges its gradient
        self.codec: CompressionCodec | None = None  # of a strategy, where the engine applies it
        self.is_dense = True  # no gradient has been sparse so far
        self.sparse_dim: int | None = None  # of gradients that travel dense (sparse_as_dense)
        self.rows: RowExchange | None = None  # if its touched rows travel
        self.early: EarlyPart | None = None  # if its rows travel: what may leave before them
        self.pack: Pack | None = None
        self.may_pack = True
        self.was_absent = False  # from some step so far, on this rank
        self.in_pack = False  # its gradient waits for the others of its pack
        self.priority: int | None = None  # as the user wants it; None: by order of first use
        self.place = index  # in the order of first use
        self.owner: Any = None  # the Crossing that is told of reads while the parameter is guarded
        self.is_guarded = False
        self.is_watched = False  # its first use is being recorded
        self.is_seen = False  # reads of it come through Python, so that they can wait
        self.hyper_parameters: HyperParameters | None = None
        self.param_group = 0  # of the optimizer; the number at the time of step()

    @property
    def is_sent(self) -> bool:
        return self.grad is not None

    @property
    def is_committed(self) -> bool:
        return self.hyper_parameters is not None
