"""Runner: a rank's part of a plan, on NumPy arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rabit.checkpoint.leaves import even_rows
from rabit.engine.current import current_engine
from rabit.engine.process_set import (
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)
from rabit.errors import InvalidArgument, Mismatch
from rabit.ops.collectives import allgather, allreduce, alltoall, reducescatter
from rabit.ops.objects import allgather_object
from rabit.sharding.annotated.completion import Compute, Move, Plan
from rabit.sharding.annotated.mesh import Spec
from rabit.sharding.annotated.program import Local
from rabit.sharding.annotated.resharding import Step
from rabit.types import Max, Min, Sum

__all__ = ["Runner"]

_OPS = {"sum": Sum, "max": Max, "min": Min}


class Runner:
    """Runs a plan again and again; collective. One thread at a time.

    Every rank of the job makes one of the same plan: it registers a process set for each group of the mesh.
    Raises InvalidArgument if the mesh has another number of ranks, Mismatch if the plan of a rank differs.
    """

    def __init__(self, plan: Plan) -> None:
        engine = current_engine()
        if engine.size != plan.mesh.size:
            raise InvalidArgument(
                f"sharding.Runner on rank {engine.rank}: {plan.mesh} has {plan.mesh.size} ranks, and the job has "
                f"{engine.size}. Make the product of the axes the size of the job."
            )
        digests = allgather_object(plan.digest, name="sharding.plan")
        others = [rank for rank, digest in enumerate(digests) if digest != digests[0]]
        if others:
            raise Mismatch(
                f"sharding.Runner on rank {engine.rank}: rank {others[0]} has another plan than rank 0 "
                f"({digests[others[0]]} and {digests[0]}). Trace the same program with the same shapes on every rank."
            )
        self._plan = plan
        self._rank = engine.rank
        self._place = plan.mesh.place(engine.rank)
        self._registered: list[
            ProcessSet
        ] = []  # those of other ranks too: all ranks remove all of them
        self._sets = {
            axis: self._set_of(axis) for axis, count in plan.mesh.axes.items() if count > 1
        }

    def close(self) -> None:
        """Removes the process sets; collective."""
        for process_set in self._registered:
            remove_process_set(process_set)
        self._registered = []

    def run(self, *parts: Any) -> list[Any]:
        """The parts of the outputs, from this rank's parts of the inputs, which Plan.part cuts. Collective; blocks.

        Raises InvalidArgument for a part of another shape or dtype.
        """
        program = self._plan.program
        held: dict[tuple[int, Spec], Any] = {}
        if len(parts) != len(program.inputs):
            raise InvalidArgument(
                f"sharding.Runner.run on rank {self._rank}: {len(parts)} arrays, and the program has "
                f"{len(program.inputs)} inputs. Pass one array for each input."
            )
        for number, spec, part in zip(program.inputs, self._plan.given, parts, strict=True):
            held[number, spec] = self._checked(number, spec, part)
        for number, value in enumerate(program.values):
            if value.constant is not None:
                held[number, Spec((None,) * value.constant.ndim)] = value.constant
        for count, step in enumerate(self._plan.instructions):
            if isinstance(step, Compute):
                held[step.operation.output, step.output] = self._compute(step, held)
            else:
                held[step.value, step.target] = self._moved(
                    step, held[step.value, step.source], count
                )
        return [held[key] for key in zip(program.outputs, self._plan.results, strict=True)]

    def _set_of(self, axis: str) -> ProcessSet:
        groups = self._plan.mesh.groups(axis)
        if len(groups) == 1:
            return global_process_set
        made = [add_process_set(ranks) for ranks in groups]
        self._registered += made
        return next(found for found, ranks in zip(made, groups, strict=True) if self._rank in ranks)

    def _checked(self, number: int, spec: Spec, part: Any) -> Any:
        value = self._plan.program.values[number]
        cut = spec.part(value.shape, self._plan.mesh, self._place)
        shape = tuple(at.stop - at.start for at in cut)
        if tuple(part.shape) != shape or part.dtype != value.dtype:
            raise InvalidArgument(
                f"sharding.Runner.run on rank {self._rank}: the part of {value.name!r} is "
                f"{part.dtype}{list(part.shape)}, and {spec} of {list(value.shape)} makes it "
                f"{value.dtype}{list(shape)}. Cut it with Plan.part."
            )
        return part

    def _compute(self, step: Compute, held: dict[tuple[int, Spec], Any]) -> Any:
        operation = step.operation
        arrays = [held[key] for key in zip(operation.inputs, step.inputs, strict=True)]
        value = self._plan.program.values[operation.output]
        cut = step.output.part(value.shape, self._plan.mesh, self._place)
        intervals = [
            (0, factor.size) if axis is None
            else even_rows(factor.size, self._place[axis], self._plan.mesh.axes[axis])
            for factor, axis in zip(operation.factors, step.axes, strict=True)
        ]  # fmt: skip
        shape = tuple(at.stop - at.start for at in cut)
        result = np.asarray(operation.run(Local(shape, tuple(intervals)), arrays))
        return result.astype(value.dtype, copy=False)

    def _moved(self, move: Move, part: Any, count: int) -> Any:
        name = f"sharding.{count}.{self._plan.program.values[move.value].name}"
        before = move.source
        for index, step in enumerate(move.steps):
            part = self._exchanged(move, step, before, part, f"{name}.{index}")
            before = step.after
        return part

    def _exchanged(self, move: Move, step: Step, before: Spec, part: Any, name: str) -> Any:
        shape = self._plan.program.values[move.value].shape
        ranks = self._plan.mesh.axes[step.axis]
        if step.kind == "slice" or ranks == 1:
            start, end = (
                even_rows(shape[step.dim], self._place[step.axis], ranks)
                if step.dim >= 0
                else (0, 0)
            )
            return (
                part[(slice(None),) * step.dim + (slice(start, end),)]
                if step.kind == "slice"
                else part
            )
        members, op = self._sets[step.axis], _OPS[move.combine]
        if step.kind == "allreduce":
            return allreduce(np.ascontiguousarray(part), name=name, op=op, process_set=members)
        front = np.ascontiguousarray(np.moveaxis(part, step.dim, 0))
        if step.kind == "reducescatter":
            got = reducescatter(front, name=name, op=op, process_set=members)
        elif step.kind == "allgather":
            got = allgather(front, name=name, process_set=members)
        else:
            got = self._alltoall(step, front, name, shape, members)
        return np.moveaxis(got, 0, step.dim)

    def _alltoall(
        self, step: Step, front: Any, name: str, shape: Sequence[int], members: ProcessSet
    ) -> Any:
        """front: with the dimension that will be divided first."""
        ranks = self._plan.mesh.axes[step.axis]
        rows = [
            end - start
            for start, end in (even_rows(shape[step.dim], i, ranks) for i in range(ranks))
        ]
        widths = [
            end - start
            for start, end in (even_rows(shape[step.source_dim], i, ranks) for i in range(ranks))
        ]
        # Rows of the others differ in the dimension that was divided: it goes to the front, flattened with the rows.
        own = rows[self._place[step.axis]]
        inner = step.source_dim + (step.source_dim < step.dim)  # where that dimension is in `front`
        flat = np.ascontiguousarray(np.moveaxis(front, inner, 1))
        rest = flat.shape[2:]
        sent = flat.reshape(-1, *rest)
        width = flat.shape[1]
        got, _ = alltoall(sent, [count * width for count in rows], name=name, process_set=members)
        bounds = np.cumsum([own * width for width in widths])[:-1]
        blocks = [
            block.reshape(own, width, *rest)
            for block, width in zip(np.split(got, bounds), widths, strict=True)
        ]
        return np.moveaxis(np.concatenate(blocks, axis=1), 1, inner)
