"""Draft: the request of one tensor while it is made, with the checks that operations share.

Others may wait for the call already: what goes wrong meanwhile is reported to them.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from rabit.engine.current import engine_for_work
from rabit.engine.engine import Engine
from rabit.engine.handle import Finish
from rabit.engine.process_set import ProcessSet, group_on
from rabit.engine.request import Request
from rabit.engine.tensor import TensorView, reshape, view_output
from rabit.errors import InvalidArgument
from rabit.types import CPU, Kind, ReduceOp

__all__ = ["Awaited", "Draft"]


class Awaited:
    """A context manager around what makes the request of a call.

    What is raised inside ends the call on this rank, so the others are informed: they raise InvalidArgument
    with the reason in place of waiting.  The submission stays outside, for the engine tells by itself
    what it refuses, and a rank that gets two reports misses the next call of the name as well.
    """

    __slots__ = ("count", "engine", "group", "kind", "name", "root")

    def __init__(
        self,
        engine: Engine,
        kind: Kind,
        name: str | None,
        group: int,
        count: int | None = None,
        root: int = -1,
    ) -> None:
        """name: None has the number of the call, which is taken if others are told.
        count: tensors of a grouped call, "w.0" and so on; root: the partner of a message."""
        self.engine = engine
        self.kind = kind
        self.name = name
        self.group = group
        self.count = count
        self.root = root

    def __enter__(self) -> Awaited:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not isinstance(error, Exception):  # Ctrl-C says nothing of the call.
            return
        name = self.engine.number_of(self.kind, self.group) if self.name is None else self.name
        names = [name] if self.count is None else [f"{name}.{index}" for index in range(self.count)]
        self.engine.tell_error(
            [Request(self.kind, name, group=self.group, root=self.root) for name in names], error
        )


class Draft(Awaited):
    """A context: what is raised inside is reported to the other ranks, which may wait for the call already."""

    __slots__ = ("backend", "priority")

    name: str

    def __init__(
        self,
        engine: Engine,
        kind: Kind,
        name: str,
        group: int,
        priority: int = 0,
        backend: str = "",
    ) -> None:
        super().__init__(engine, kind, name, group)
        self.priority = priority
        self.backend = backend

    @staticmethod
    def of(engine: Engine | None, kind: Kind, name: str | None, process_set: ProcessSet) -> Draft:
        """That of a call with these arguments; a name that is None is numbered."""
        engine = engine_for_work() if engine is None else engine
        group = group_on(process_set, engine)
        return Draft(engine, kind, engine.number_of(kind, group) if name is None else name, group)

    def __enter__(self) -> Draft:
        return self

    def __str__(self) -> str:
        """How messages name the operation."""
        return f"{self.kind} '{self.name}' on rank {self.engine.rank}"

    def member(self, index: int) -> Draft:
        """The draft of tensor `index` of a grouped call."""
        other = copy.copy(self)
        other.name = f"{self.name}.{index}"
        return other

    def request(
        self, source: TensorView | None, target: TensorView | None, finish: Finish
    ) -> Request:
        """finish: makes of the finished handle what the call returns."""
        return Request(
            self.kind,
            self.name,
            source,
            target,
            priority=self.priority,
            group=self.group,
            backend=self.engine.backend(self.backend) if self.backend else -1,
            finish=finish,
        )

    def refusal(self, why: str) -> InvalidArgument:
        """The error of a call that cannot work."""
        return InvalidArgument(f"{self}: {why}")

    def check_rank(self, rank: int, argument: str) -> int:
        """`rank` if it is a global rank of the process set."""
        members = self.engine.members(self.group)
        if rank not in members:
            raise self.refusal(
                f"{argument} is {rank}, which is not among the ranks "
                f"{shorten(members)}. Pass the global rank of a member."
            )
        return rank

    def with_rows(self, view: TensorView) -> TensorView:
        """A scalar as one row."""
        return view if view.shape else reshape(view, (1,))

    def check_splits(self, splits: Sequence[int] | None, view: TensorView) -> list[int]:
        """`splits` if there is one per member and they add up to the rows of the tensor; None: as many for each."""
        size = len(self.engine.members(self.group))
        if splits is None:
            if view.shape[0] % size:
                raise self.refusal(
                    f"{view.shape[0]} rows cannot be divided evenly among {size} ranks. "
                    "Pass splits, the rows for each rank."
                )
            return [view.shape[0] // size] * size
        try:
            rows = [operator.index(count) for count in splits]
        except TypeError:
            raise self.refusal(
                f"splits are {splits!r}. Pass integers, the rows for each rank."
            ) from None
        if len(rows) != size or min(rows) < 0 or sum(rows) != view.shape[0]:
            raise self.refusal(
                f"splits are {shorten(rows)}, and the tensor has {view.shape[0]} rows "
                f"for {size} ranks. Pass one number per rank, none negative, that add up to the "
                "rows."
            )
        return rows

    def scale(
        self,
        request: Request,
        op: Any,
        average: bool | None,
        prescale_factor: float,
        postscale_factor: float,
        meaning: Any = ReduceOp,
    ) -> None:
        """Sets the operation and the factors of a reduction.  meaning: makes a ReduceOp of `op`."""
        if average is not None:
            if op is not None:
                raise self.refusal(
                    f"both average={average} and op={op!r} are given. Pass op alone."
                )
            op = ReduceOp.AVERAGE if average else ReduceOp.SUM
        try:
            if type(op) is not ReduceOp:
                op = ReduceOp.AVERAGE if op is None else meaning(op)
            request.op = op
        except InvalidArgument:  # The framework has said why.
            raise
        except ValueError:
            names = ", ".join(f"{known} ({known.value})" for known in ReduceOp)
            raise self.refusal(f"op is {op!r}, which is not a reduction. Known: {names}.") from None
        try:
            # Not float() alone, which reads text as well.
            request.prescale, request.postscale = (
                float(1.0 * prescale_factor),
                float(1.0 * postscale_factor),
            )
        except (TypeError, ValueError):
            raise self.refusal(
                f"prescale_factor is {prescale_factor!r} and postscale_factor "
                f"{postscale_factor!r}. Pass numbers."
            ) from None

    def view_residual(self, residual: Any, rows: int, request: Request) -> TensorView:
        """The memory of an allreduce's residual.  rows: of it, each like the tensor."""
        view = view_output(residual, self)
        source = request.input
        assert source is not None  # an allreduce has an input
        shape = source.shape if rows == 1 else (rows, *source.shape)
        if view.device != CPU:
            raise self.refusal(
                "the residual is not in the memory of the CPU, where codecs work "
                "for tensors of a device as well. Pass one on the CPU."
            )
        if tuple(view.shape) == tuple(shape) and view.dtype == source.dtype:
            return view
        wanted = "like the tensor" if rows == 1 else f"of shape {list(shape)}, a row for the sums"
        raise self.refusal(
            f"the residual is {view.dtype.name.lower()}{list(view.shape)}, "
            f"the tensor {source.dtype.name.lower()}{list(source.shape)}. Pass a residual {wanted}."
        )


def shorten(values: Sequence[int]) -> str:
    """A list of numbers for messages."""
    if len(values) <= 16:
        return str(list(values))
    return f"[{', '.join(str(value) for value in values[:15])}, ... {values[-1]}]"
