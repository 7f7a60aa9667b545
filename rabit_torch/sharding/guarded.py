"""Parameters that are gathered when something reads them, in a module's forward pass or past it.

The class of a divided parameter has `__torch_function__`, which torch calls for every operation in Python that takes
the parameter; the operation gets the gathered values in its place. Gradients reach the parameter as ever.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from rabit import InvalidArgument
from rabit.checkpoint import Part
from rabit_torch.sharding.divided import DividedTensor, without_values
from rabit_torch.sharding.flats import PartStorage
from rabit_torch.sharding.forms import whole_of
from rabit_torch.sharding.gathers import Gathers, Unit
from rabit_torch.tensors import METADATA_AND_GRADIENT

__all__ = ["DividedParameter", "Divided", "divide", "is_in_place"]

_tensor: Any = torch.Tensor
_no_torch_function: Any = torch._C.DisableTorchFunctionSubclass
_STRIDES = {torch.Tensor.stride, torch.Tensor.is_contiguous, torch.Tensor.storage_offset}
_ALIASES = {torch.Tensor.detach, _tensor.data.__get__}
_SETS_DATA = _tensor.data.__set__


class Divided:
    """Where the values of a divided parameter are."""

    def __init__(
        self,
        name: str,
        parameter: torch.nn.Parameter,
        gathers: Gathers,
        unit: Unit,
        storage: PartStorage,
        place: int,
    ) -> None:
        self.name = name
        self.parameter = parameter
        self.gathers = gathers
        self.unit = unit
        self.storage = storage
        self.place = place
        self.is_writable = False  # in gathered(model, write=True)
        self._twin = torch.empty_strided(
            parameter.shape, storage.strides[place], dtype=parameter.dtype, device="meta"
        )

    def values(self) -> torch.Tensor:
        """The whole values, for an operation. Blocks until every rank reads them."""
        self.gathers.read(self.unit)
        if torch.is_grad_enabled() and self.parameter.requires_grad:
            used: torch.Tensor = _Use.apply(self.parameter, self)  # type: ignore[no-untyped-call]
            return used
        return self.view()

    def view(self) -> torch.Tensor:
        return self.unit.view(self.storage, self.place)

    def alias(self) -> torch.Tensor:
        """The values as a tensor of their own; one without values where no forward pass would use them."""
        if self.gathers.passes or self.unit.scopes:
            self.gathers.read(self.unit)
            return self.view()
        return without_values(self.parameter, self.name)

    def part(self) -> Part:
        """This rank's elements of the flattened values; none where another group saves the same."""
        return self.storage.levels.part(
            self.storage.elements(self.place).cpu(), self.storage.interval(self.place).start, self._twin.numel()
        )

    def twin(self) -> torch.Tensor:
        """A tensor of the shape and the strides of the whole values."""
        return self._twin

    def take(self, parts: Sequence[Part]) -> None:
        """Goes on from the values whose parts are on the ranks: any number here. Blocks until every rank calls it."""
        values = whole_of(
            f"{self.storage.prefix}.commit.{self.name}",
            repr(self.name),
            parts,
            self.storage.elements(self.place)[:0].cpu(),
            self._twin.numel(),
            self.storage.levels.everyone,
        )
        self.write(values.as_strided(self._twin.shape, self._twin.stride()))

    def write(self, value: Any) -> None:
        """Takes this rank's part of a whole value, as load_state_dict does it on every rank."""
        if isinstance(value, DividedTensor):
            return  # Its own, or one whose part has been taken.
        if tuple(value.shape) != tuple(self._twin.shape):
            value = value.expand(self._twin.shape)
        with self.gathers.writing([self.unit]), torch.no_grad():
            self.storage.write(self.place, value)


class _Use(torch.autograd.Function):
    """The whole values of a parameter, whose gradient goes to the parameter.

    A node for each use: autograd adds up the gradients of the uses in the order that it has without sharding.
    """

    @staticmethod
    def forward(context: Any, parameter: torch.Tensor, divided: Divided) -> torch.Tensor:
        context.set_materialize_grads(False)
        return divided.view()

    @staticmethod
    def backward(context: Any, gradient: Any) -> Any:
        return gradient, None


class DividedParameter(torch.nn.Parameter):
    """A parameter of which each rank keeps a part."""

    rabit_divided: Divided

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in METADATA_AND_GRADIENT and func not in _STRIDES:
            with _no_torch_function():
                return func(*args, **kwargs)
        first = args[0] if args else next(iter(kwargs.values()), None)
        if isinstance(first, cls):
            if func in _STRIDES:
                return func(first.rabit_divided.twin(), *args[1:], **kwargs)
            if func in _ALIASES:
                return first.rabit_divided.alias()
            if func is torch.Tensor.copy_ and not first.rabit_divided.is_writable:
                first.rabit_divided.write(*args[1:2])
                return first
        _refuse_writes(func, first, kwargs.get("out"))
        return func(*_read(args), **_read(kwargs))

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        divided = self.rabit_divided
        own = divided.storage.interval(divided.place)
        return (
            f"Parameter {divided.name!r} of shape {tuple(self.shape)}, {self.dtype}, divided among the ranks: elements "
            f"{own.start} to {own.start + own.length} are here"
        )

    def __deepcopy__(self, memo: Any) -> Any:
        raise InvalidArgument(_cannot_be("copied", self.rabit_divided.name))

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise InvalidArgument(_cannot_be("pickled", self.rabit_divided.name))


def divide(parameter: torch.nn.Parameter, divided: Divided) -> None:
    """Lets go the values of `parameter`, which are in parts now."""
    # What reads past the class, as compiled code does, gets no number that looks right.
    nothing = parameter.new_full((), float("nan"))
    parameter.data = nothing.expand(parameter.shape)
    changed: Any = parameter
    changed.__class__ = DividedParameter
    changed.rabit_divided = divided


def _read(value: Any) -> Any:
    kind = type(value)
    if kind is DividedParameter:
        return value.rabit_divided.values()
    if kind in (tuple, list):
        return kind(_read(item) for item in value)
    if kind is dict:
        return {key: _read(item) for key, item in value.items()}
    return value


def _refuse_writes(func: Callable[..., Any], first: Any, out: Any) -> None:
    """Raises InvalidArgument where the whole values would be changed and then forgotten."""
    written = [first] if is_in_place(func) else []
    targets = [*written, out]
    for target in targets:
        several = target if isinstance(target, (list, tuple)) else [target]
        for parameter in several:
            if type(parameter) is not DividedParameter:
                continue
            if func == _SETS_DATA or not parameter.rabit_divided.is_writable:
                raise InvalidArgument(
                    f"{parameter.rabit_divided.name!r} is divided among the ranks (shard='parameters') and cannot be "
                    "written as a whole here. On every rank: with rabit_torch.sharding.gathered(model, write=True), "
                    "change the values in place"
                )


def is_in_place(func: Callable[..., Any]) -> bool:
    """Whether an operation writes its first tensor."""
    name = getattr(func, "__name__", "")
    ends_as_written = name.endswith("_") and not name.endswith("__")
    return ends_as_written or name in _IN_PLACE or func == _SETS_DATA


_IN_PLACE = {
    "__setitem__",
    "__set__",
    *(f"__i{name}__" for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor")),
}


def _cannot_be(what: str, name: str) -> str:
    return (
        f"{name!r} is divided among the ranks (shard='parameters') and cannot be {what}. Copy the model before "
        "sharding, or in rabit_torch.sharding.gathered(model) take model.state_dict()"
    )
