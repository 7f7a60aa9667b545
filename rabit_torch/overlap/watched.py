"""Guards: parameters that tell before they are read.

While a gradient or an update of a parameter is under way, the class of the parameter is one with
`__torch_function__`, which torch calls for every operation in Python that takes the parameter:
module or no module, by the owner's forward or past it, under no_grad or not.  Torch changes the
class of lazily initialised parameters in the same way.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch.multiprocessing.reductions import reduce_tensor

from rabit_torch.parameter_state import DeferredUpdate, Phase
from rabit_torch.tensors import METADATA, found_in

__all__ = ["can_guard", "guard", "make_ready", "unguard"]

_no_torch_function: Any = torch._C.DisableTorchFunctionSubclass
_KEY = "_rabit_update"
_UNGUARDED = Phase.PLAIN
_tensor: Any = torch.Tensor
_GRAD_GET = _tensor.grad.__get__
_GRAD_CHANGES = frozenset([_tensor.grad.__set__, _tensor.grad.__delete__])


def _torch_function(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    if func in METADATA:
        with _no_torch_function():
            return func(*args, **kwargs)
    first = args[0] if args else None
    update: DeferredUpdate | None = first.__dict__.get(_KEY) if type(first) in _PLAIN else None
    if update is not None and func == _GRAD_GET:
        update.owner.gradient_is_read(update)
        with _no_torch_function():
            return func(*args, **kwargs)
    if update is not None and func in _GRAD_CHANGES:
        update.owner.gradient_is_replaced(update)
        with _no_torch_function():
            return func(*args, **kwargs)
    is_still_guarded = False
    for parameter in [*found_in(args, _PLAIN), *found_in(kwargs, _PLAIN)]:
        if type(parameter) not in _PLAIN:
            continue  # A read of one updates its whole pack.
        found = parameter.__dict__[_KEY]
        found.owner.value_is_read(found, func)
        is_still_guarded = is_still_guarded or type(parameter) in _PLAIN
    if is_still_guarded:
        with _no_torch_function():
            return func(*args, **kwargs)
    return func(*args, **kwargs)


class _Guarded:
    """What both guarded classes share."""

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return _torch_function(func, args, kwargs or {})

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        with _let_go(self) as parameter:
            return copy.deepcopy(parameter, memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        with _let_go(self) as parameter:
            return _reduce_plainly(parameter, protocol)


def _reduce_plainly(parameter: torch.Tensor, protocol: int) -> tuple[Any, ...]:
    """What pickles `parameter`, which is of its own class now and will not be after the return."""
    rebuild, arguments = parameter.__reduce_ex__(protocol)[:2]  # type: ignore[no-untyped-call]
    # The attributes must not be those of the parameter, which gets more of them again.
    own = parameter.__dict__
    return rebuild, tuple(dict(value) if value is own else value for value in arguments)


class GuardedParameter(_Guarded, torch.nn.Parameter):
    """A parameter of a module whose gradient or update is under way."""


class GuardedTensor(_Guarded, torch.Tensor):
    """A leaf tensor whose gradient or update is under way."""


_PLAIN: dict[type, type] = {GuardedParameter: torch.nn.Parameter, GuardedTensor: torch.Tensor}
_GUARDED: dict[type, type] = {plain: guarded for guarded, plain in _PLAIN.items()}


def _reduce_for_sharing(guarded: Any) -> Any:
    """Queues of torch.multiprocessing share the memory of a parameter, not a copy."""
    with _let_go(guarded) as parameter:
        return reduce_tensor(parameter)  # type: ignore[no-untyped-call]


for _each in _PLAIN:
    ForkingPickler.register(_each, _reduce_for_sharing)


@contextlib.contextmanager
def _let_go(guarded: Any) -> Iterator[Any]:
    """The parameter as what it is, for a copy; what is under way is finished before."""
    update: DeferredUpdate = guarded.__dict__[_KEY]
    update.owner.is_copied(update)
    phase = update.phase
    unguard(update)
    try:
        yield guarded
    finally:
        if phase is not _UNGUARDED:
            guard(update, phase)


def can_guard(parameter: torch.Tensor) -> bool:
    """False for subclasses, whose class has a meaning of its own."""
    return type(parameter) in _GUARDED or type(parameter) in _PLAIN


def guard(update: DeferredUpdate, phase: Phase) -> None:
    """From here on, in another phase than PLAIN, the owner of `update` hears before the parameter is read."""
    if update.phase is _UNGUARDED:
        parameter: Any = update.state.parameter  # its class changes
        parameter.__dict__[_KEY] = update
        parameter.__class__ = _GUARDED[type(parameter)]
    update.phase = phase


def unguard(update: DeferredUpdate) -> None:
    """Ends `guard`, in the phase PLAIN; does nothing in it."""
    if update.phase is not _UNGUARDED:
        update.phase, update.hyper_parameters = _UNGUARDED, None
        parameter: Any = update.state.parameter
        parameter.__class__ = _PLAIN[type(parameter)]
        parameter.__dict__.pop(_KEY, None)


def make_ready(parameters: Iterable[torch.Tensor]) -> None:
    """Does what a read of each of `parameters` would do first.  Blocks until they are up to date.

    For the entry of code that reads parameters without torch's Python operations: compiled blocks,
    TorchScript, extensions.  Afterwards none of them is guarded, unless its gradient travels.
    """
    for parameter in parameters:
        if type(parameter) in _PLAIN:
            update: DeferredUpdate = parameter.__dict__[_KEY]
            update.owner.value_is_read(update, make_ready)
