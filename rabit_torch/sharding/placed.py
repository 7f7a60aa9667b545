"""distribute: a plan of annotations, carried out on a model of torch by DTensor.

Source: Xu et al., GSPMD: General and Scalable Parallelization for ML Computation Graphs (2021).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Placement,
    Replicate,
    Shard,
    distribute_tensor,
)

import rabit
from rabit import InvalidArgument, Mismatch
from rabit.sharding import Mesh, Plan, Spec
from rabit_torch.sharding.watch import Resharding, Watch

__all__ = ["distribute", "reshardings"]

_ATTRIBUTE = "_rabit_watch"


def distribute(model: torch.nn.Module, plan: Plan, *, strict: bool = False) -> torch.nn.Module:
    """Divides `model` as `plan` says; returns it, with DTensors as parameters, buffers and outputs.

    plan: of rabit.sharding.complete, the same on every rank. An input of its program is the parameter of that name,
    with "_" for "."; the others are the arguments of forward, of which each rank passes its part (`Plan.part`). Its
    first outputs are those of forward; an output named as a submodule says how the submodule's output lies. Parameters
    that the program does not have are whole on every rank, as are buffers.
    A parameter with `store` is gathered where its module runs, and its gradient scattered. DTensor divides every
    operation from its operands; where it gathers or exchanges an operand that the plan does not mention, that is
    logged once with its bytes (logger "rabit_torch.sharding"). strict: it is refused (Unsupported), in a backward
    pass too, and for every model on an equal mesh.
    The values are those of rank 0. Needs a process group of all ranks, such as backend "rabit"; blocks until every
    rank has called it. Raises InvalidArgument for shapes that differ from the plan's or that an axis does not divide,
    Mismatch if the plans of the ranks differ.
    """
    _check_group(plan)
    watch = Watch.of(plan.mesh.axes)
    watch.strict |= strict
    placed = _Placed(plan, watch.mesh)
    for path, module in list(model.named_modules()):
        placed.divide(path, module)
    placed.watch_inputs(model)
    placed.watch_outputs(model)
    setattr(model, _ATTRIBUTE, watch)
    return model


def reshardings(model: torch.nn.Module) -> list[Resharding]:
    """What DTensor has changed for operations on the mesh of a distributed model, with counts, on this rank."""
    watch: Watch = getattr(model, _ATTRIBUTE)
    return watch.found()


def _check_group(plan: Plan) -> None:
    if not dist.is_initialized():
        raise InvalidArgument(
            "distribute: there is no process group. Call torch.distributed.init_process_group('rabit'), or start the "
            "job with rabitrun --init-torch"
        )
    if dist.get_world_size() != plan.mesh.size:
        raise InvalidArgument(
            f"distribute: {plan.mesh} has {plan.mesh.size} ranks, and the process group has {dist.get_world_size()}. "
            "Make the product of the axes the size of the job"
        )
    digests: list[Any] = [None] * plan.mesh.size
    dist.all_gather_object(digests, plan.digest)
    others = [rank for rank, digest in enumerate(digests) if digest != digests[0]]
    if others:
        raise Mismatch(
            f"distribute: rank {others[0]} has another plan than rank 0 ({digests[others[0]]} and {digests[0]}). "
            "Trace the same program with the same shapes on every rank",
            others[0],
        )


class _Placed:
    """Where the tensors of a model lie."""

    def __init__(self, plan: Plan, mesh: Any) -> None:
        self._plan = plan
        self._mesh = mesh
        program = plan.program
        self._given = {
            program.values[number].name: (number, spec)
            for number, spec in zip(program.inputs, plan.given, strict=True)
        }
        self._results = {
            program.values[number].name: (number, spec)
            for number, spec in zip(program.outputs, plan.results, strict=True)
        }
        self._parameters: set[str] = set()
        self._divided: dict[
            torch.Tensor, torch.nn.Parameter
        ] = {}  # by what they replace: it may be shared
        self._modules: set[str] = set()

    def divide(self, path: str, module: torch.nn.Module) -> None:
        """The module's own parameters and buffers become DTensors."""
        gathered: dict[str, list[Placement]] = {}
        for leaf, parameter in list(module.named_parameters(recurse=False)):
            stored, used = self._layouts(_underscored(path, leaf), parameter)
            if parameter not in self._divided:
                value = distribute_tensor(parameter.detach(), self._mesh, stored)
                made = torch.nn.Parameter(value, requires_grad=parameter.requires_grad)
                if made.requires_grad:
                    hooked: Any = made
                    hooked.register_hook(_to(stored))
                self._divided[parameter] = made
            setattr(module, leaf, self._divided[parameter])
            if stored != used:
                gathered[leaf] = used
        for leaf, buffer in list(module.named_buffers(recurse=False)):
            whole = [Replicate()] * self._mesh.ndim
            setattr(module, leaf, distribute_tensor(buffer, self._mesh, whole))
        if gathered:
            _gather_when_used(module, gathered)
        name = _underscored(path, "")
        if name in self._results and path:
            self._modules.add(name)
            wanted = _placements(self._results[name][1], self._plan.mesh)
            module.register_forward_hook(lambda _module, _given, found: _moved(found, [wanted]))

    def watch_inputs(self, model: torch.nn.Module) -> None:
        """The parts that the ranks pass become DTensors."""
        inputs = [
            (name, *found) for name, found in self._given.items() if name not in self._parameters
        ]

        def place(_module: Any, given: tuple[Any, ...]) -> tuple[Any, ...]:
            if len(given) > len(inputs):
                names = ", ".join(name for name, *_ in inputs) or "none"
                raise InvalidArgument(
                    f"distribute: forward got {len(given)} arguments on rank {rabit.rank()}; the plan's inputs that "
                    f"are not parameters are {names}"
                )
            return tuple(map(self._placed_input, given, inputs))

        model.register_forward_pre_hook(place)

    def watch_outputs(self, model: torch.nn.Module) -> None:
        """What forward returns is brought into the layouts of the plan's first outputs."""
        results = [spec for name, (_, spec) in self._results.items() if name not in self._modules]
        wanted = [_placements(spec, self._plan.mesh) for spec in results]
        model.register_forward_hook(lambda _module, _given, found: _moved(found, wanted))

    def _placed_input(self, part: Any, described: tuple[str, int, Spec]) -> Any:
        name, number, spec = described
        if not isinstance(part, torch.Tensor) or isinstance(part, DTensor):
            return part
        shape = self._plan.program.values[number].shape
        self._check_division(name, shape, spec)
        cut = spec.part(shape, self._plan.mesh, self._plan.mesh.place(dist.get_rank()))
        expected = tuple(at.stop - at.start for at in cut)
        if tuple(part.shape) != expected:
            raise InvalidArgument(
                f"distribute: {name!r} on rank {rabit.rank()} has the shape {tuple(part.shape)}; its part of "
                f"{tuple(shape)} as {spec} has {expected}. Pass plan.part({name!r}, whole, rank)"
            )
        return DTensor.from_local(part, self._mesh, _placements(spec, self._plan.mesh))

    def _layouts(
        self, name: str, parameter: torch.Tensor
    ) -> tuple[list[Placement], list[Placement]]:
        """How a parameter is kept, and how it is used."""
        if name not in self._given:
            whole: list[Placement] = [Replicate()] * self._mesh.ndim
            return whole, whole
        self._parameters.add(name)
        number, stored = self._given[name]
        shape = self._plan.program.values[number].shape
        if tuple(parameter.shape) != tuple(shape):
            raise InvalidArgument(
                f"distribute: the parameter {name!r} has the shape {tuple(parameter.shape)}, and the program was "
                f"traced with {tuple(shape)}. torch.nn.Linear keeps (outputs, inputs)"
            )
        used = self._plan.specs[number]
        self._check_division(name, shape, stored)
        self._check_division(name, shape, used)
        return _placements(stored, self._plan.mesh), _placements(used, self._plan.mesh)

    def _check_division(self, name: str, shape: tuple[int, ...], spec: Spec) -> None:
        """DTensor cuts uneven dimensions elsewhere than a plan does."""
        for dim, axis in enumerate(spec.dims):
            if axis is not None and shape[dim] % self._plan.mesh.axes[axis]:
                raise InvalidArgument(
                    f"distribute: dimension {dim} of {name!r} has {shape[dim]} rows, and the axis {axis!r} has "
                    f"{self._plan.mesh.axes[axis]} ranks, which do not divide them. Leave the dimension whole, or use "
                    "NumPy and rabit.sharding.Runner"
                )


def _underscored(path: str, leaf: str) -> str:
    return ".".join(filter(None, [path, leaf])).replace(".", "_")


def _placements(spec: Spec, mesh: Mesh) -> list[Placement]:
    return [
        Shard(spec.dims.index(axis))
        if axis in spec.dims
        else Partial()
        if axis in spec.partial
        else Replicate()
        for axis in mesh.axes
    ]


def _to(placements: list[Placement]) -> Callable[[Any], Any]:
    return lambda gradient: gradient.redistribute(placements=placements)


def _moved(found: Any, wanted: list[list[Placement]]) -> Any:
    """An output, or the outputs, in these layouts."""
    if isinstance(found, DTensor):
        return found.redistribute(placements=wanted[0]) if wanted else found
    if isinstance(found, (tuple, list)):
        moved = [_moved(value, [layout]) for value, layout in zip(found, wanted, strict=False)]
        return type(found)([*moved, *found[len(moved) :]])
    return found


def _gather_when_used(module: torch.nn.Module, placements: Mapping[str, list[Placement]]) -> None:
    """While the module runs, these parameters are read in these layouts."""

    def gather(*_: Any) -> None:
        for leaf, layout in placements.items():
            stored: Any = module._parameters[leaf]
            # Found before the parameter, which stays what it is for optimizers and state_dict.
            module.__dict__[leaf] = stored.redistribute(placements=layout)

    def release(*_: Any) -> None:
        for leaf in placements:
            module.__dict__.pop(leaf, None)

    module.register_forward_pre_hook(gather)
    module.register_forward_hook(release, always_call=True)
