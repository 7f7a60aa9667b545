"""Tables that are looked up and multiplied by: the dense part of their gradient leaves early.

An embedding that is tied to the output projection has a gradient of two parts.  The projection's is
dense and complete when backward has hardly begun; the lookup's has few rows and comes last.  Autograd
hands out the sum only, at the end.  So the products see an alias of the table, whose backward has the
dense part; what the sum has beyond that part travels as rows.  Whatever else uses the table ends in
those rows, so that the result does not depend on what is recognised.
"""

from __future__ import annotations

import contextlib
import copy
import weakref
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch.multiprocessing.reductions import reduce_tensor

from rabit_torch.parameter_state import SentPart

__all__ = ["EarlyPart", "TiedTable", "reduce_plainly", "stop_listening"]

_no_torch_function: Any = torch._C.DisableTorchFunctionSubclass
_will_execute: Any = torch._C._will_engine_execute_node
_in_transform: Any = torch._C._are_functorch_transforms_active
_tensor: Any = torch.Tensor
_plain: Any = torch.nn.Parameter
_KEY = "_rabit_early"
_LOOKUPS = frozenset(
    [
        torch.nn.functional.embedding,
        torch.nn.functional.embedding_bag,
        torch.embedding,
        torch.index_select,
        _tensor.index_select,
        _tensor.__getitem__,
    ]
)
_PRODUCTS = frozenset(
    [
        torch.nn.functional.linear,
        torch.matmul,
        torch.mm,
        torch.addmm,
        torch.einsum,
        torch.t,
        torch.transpose,
        _tensor.matmul,
        _tensor.mm,
        _tensor.t,
        _tensor.transpose,
        _tensor.__matmul__,
        _tensor.__rmatmul__,
        _tensor.T.__get__,
        _tensor.mT.__get__,
    ]
)
_live: weakref.WeakSet[EarlyPart] = weakref.WeakSet()


class _Alias(torch.autograd.Function):
    """The table itself; its backward sees the sum of what the uses of the alias contribute."""

    @staticmethod
    def forward(context: Any, table: torch.Tensor, part: EarlyPart) -> torch.Tensor:
        context.set_materialize_grads(False)
        context.part = part
        return table.view_as(table)

    @staticmethod
    def backward(context: Any, *grads: Any) -> Any:
        (grad,) = grads
        if grad is not None and _accumulates(context):
            context.part.arrives(grad)
        return grad, None


def _accumulates(context: Any) -> bool:
    """True if the running backward pass adds to `.grad` of the table."""
    node = context.next_functions[0][0]
    if node is None:
        return False
    try:
        return bool(_will_execute(node))
    except RuntimeError:  # autograd.grad() asks for the table itself: torch has no answer then.
        return False


class TiedTable(torch.nn.Parameter):
    """A parameter between two steps whose uses are looked at."""

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _LOOKUPS:
            for part in _parts_in(args, kwargs):
                part.is_looked_up = True
        elif func in _PRODUCTS and torch.is_grad_enabled() and not _in_transform():
            args = tuple(_aliased(each) for each in args)
            kwargs = {key: _aliased(each) for key, each in kwargs.items()}
            return func(*args, **kwargs)
        with _no_torch_function():
            return func(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        with _as_parameter(self) as parameter:
            return copy.deepcopy(parameter, memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        with _as_parameter(self) as parameter:
            return reduce_plainly(parameter, protocol)


def reduce_plainly(parameter: torch.Tensor, protocol: int) -> tuple[Any, ...]:
    """What pickles `parameter`, which is of its own class now and will not be after the return."""
    rebuild, arguments = parameter.__reduce_ex__(protocol)[:2]  # type: ignore[no-untyped-call]
    # The attributes must not be those of the parameter, which gets more of them again.
    own = parameter.__dict__
    return rebuild, tuple(dict(each) if each is own else each for each in arguments)


def _parts_in(args: Any, kwargs: Any) -> Iterator[EarlyPart]:
    for each in [*args, *kwargs.values()]:
        if type(each) is TiedTable:
            yield each.__dict__[_KEY]


def _aliased(value: Any) -> Any:
    if type(value) is not TiedTable:
        return value
    part: EarlyPart = value.__dict__[_KEY]
    return part.alias()


@contextlib.contextmanager
def _as_parameter(table: Any) -> Iterator[Any]:
    part: EarlyPart = table.__dict__[_KEY]
    part.pause()
    try:
        yield table
    finally:
        part.resume()


def _reduce_for_sharing(table: Any) -> Any:
    """Queues of torch.multiprocessing share the memory of a parameter, not a copy."""
    with _as_parameter(table) as parameter:
        return reduce_tensor(parameter)  # type: ignore[no-untyped-call]


ForkingPickler.register(TiedTable, _reduce_for_sharing)


class EarlyPart:
    """The part of one gradient that leaves before the rest.  Used by one thread at a time.

    Whether there is such a part is agreed once (`is_agreed`): then every rank sends one in each step,
    zeros if need be.
    """

    def __init__(
        self,
        parameter: torch.Tensor,
        send: Callable[[torch.Tensor], Any],
        may_send: Callable[[], bool | None],
    ) -> None:
        """send: starts the exchange of a tensor in place and returns its handle.

        may_send: whether a part that is complete leaves at once, or with the rest; None: it does not
        count, because more backward passes follow.
        """
        self._parameter: Any = parameter  # its class changes
        self._send, self._may_send = send, may_send
        self._alias: Any = None
        self._alias_version = 0
        self._wants_to_listen = False
        self.is_readable = True  # False once compiled code may use the table
        self.is_looked_up = False  # in some step so far, on this rank
        self.is_multiplied = False
        self.is_agreed = False
        self.is_decided = False
        self._local: torch.Tensor | None = None  # of this step; None: zero so far
        self._wire: torch.Tensor | None = None
        self._handle: Any = None
        _live.add(self)

    # --- which uses there are ---------------------------------------------------------------------

    def listen(self) -> None:
        """From here on, products use an alias.  Between steps."""
        self._wants_to_listen = self.is_readable
        self.resume()

    def stop(self) -> None:
        """The gradient is complete: the optimizer must find a plain parameter."""
        self._wants_to_listen = False
        self.pause()

    def resume(self) -> None:
        """Listens again if `listen` has been called; does nothing for other classes of parameters."""
        if self._wants_to_listen and type(self._parameter) is torch.nn.Parameter:
            self._parameter.__dict__[_KEY] = self
            self._parameter.__class__ = TiedTable

    def pause(self) -> None:
        """Makes the parameter a plain one for a while."""
        self._alias = None
        if type(self._parameter) is TiedTable:
            self._parameter.__class__ = _plain
        self._parameter.__dict__.pop(_KEY, None)

    def alias(self) -> Any:
        """One for all products of a forward pass, so that its backward has their sum."""
        table = self._parameter
        with _no_torch_function():
            if not table.requires_grad:
                return table.detach()
            # Torch cannot differentiate a view of its own once the base has been written to.
            if self._alias is None or self._alias_version != table._version:
                self._alias = _Alias.apply(table, self)  # type: ignore[no-untyped-call]
                self._alias_version = table._version
            return self._alias

    # --- one step ---------------------------------------------------------------------------------

    def arrives(self, grad: torch.Tensor) -> None:
        """What the products contribute is complete; runs in the backward pass."""
        self.is_multiplied = True
        self._alias = None  # The next forward pass of this step has a graph of its own.
        leaves = self._may_send()
        if leaves is None or self._local is not None or not self.is_agreed:
            return
        with torch.no_grad(), _no_torch_function():
            before = self._parameter.grad  # of earlier passes
            self._local = grad.detach() if before is None else before.detach() + grad
        if leaves:
            self._start()

    def take(self) -> SentPart:
        """What has been sent in this step, or is sent now.  Once in a step, on every rank."""
        if self._handle is None:
            self._start()
        sent = SentPart(self._local, self._wire, self._handle)
        self._local = self._wire = self._handle = None
        return sent

    def _start(self) -> None:
        with torch.no_grad(), _no_torch_function():
            if self._local is None:
                self._wire = torch.zeros_like(
                    self._parameter, memory_format=torch.contiguous_format
                )
            else:
                self._wire = self._local.clone(memory_format=torch.contiguous_format)
        self._handle = self._send(self._wire)

    def next_step(self) -> None:
        """Forgets the step; what has left without the rest, because of an error, is waited for."""
        self._alias = self._local = self._wire = None
        if self._handle is not None:
            handle, self._handle = self._handle, None
            handle.wait()


def stop_listening(parameters: Iterable[torch.Tensor] | None = None) -> None:
    """Compiled code is going to use `parameters` (None: any): their uses cannot be told apart."""
    parts = (
        list(_live)
        if parameters is None
        else [each.__dict__[_KEY] for each in parameters if type(each) is TiedTable]
    )
    for part in parts:
        part.is_readable = False
        part.stop()
