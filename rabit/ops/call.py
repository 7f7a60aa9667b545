"""Form: the calls of one public function over one framework; and how such functions are made.

A call that comes again, with equal arguments and a tensor of the same type and shape, is not prepared again; see
rabit/engine/repeats.py.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Generic, ParamSpec, TypeVar

from rabit.engine.current import engine_for_work
from rabit.engine.engine import Engine
from rabit.engine.group_handle import GroupHandle
from rabit.engine.handle import Handle
from rabit.engine.process_set import ProcessSet, global_process_set, group_on
from rabit.engine.request import Request
from rabit.engine.tensor import TensorView
from rabit.errors import InvalidArgument
from rabit.ops.adapter import Adapter
from rabit.ops.draft import Draft
from rabit.types import Kind

__all__ = ["Arguments", "Builder", "Form", "Made", "listed"]

Result = TypeVar("Result")
Made_co = TypeVar("Made_co", covariant=True)
HandleType = TypeVar("HandleType")
Parameters = ParamSpec("Parameters")
Function = TypeVar("Function", bound=Callable[..., Any])
Arguments = tuple[Any, ...]


class Form(ABC):
    """The calls of one public function over one framework: each is run, which waits, or started."""

    kind: ClassVar[Kind]
    is_in_place = False  # The result is written into the tensor.
    is_new = False  # It is a new tensor of the same shape.  Neither: the engine allocates it.
    comes_again = True  # Calls with equal arguments are worth keeping.

    def __init__(self, adapter: Adapter[Any]) -> None:
        self.adapter = adapter

    @abstractmethod
    def request(self, draft: Draft, tensor: Any, arguments: Arguments, operands: Any) -> Request:
        """Checks the call and makes its request.  arguments: those that calls which come again have equal;
        the last two are priority and backend.  operands: what such calls do not have."""

    def name(self, name: str) -> str:
        """What the engine calls it."""
        return self.adapter.name(self.kind, name)

    def draft(self, engine: Engine, name: str, group: int, arguments: Arguments) -> Draft:
        *_, priority, backend = arguments
        return Draft(engine, self.kind, name, group, priority, backend)

    # The two ways of a call are written out, down to where they meet what was kept: small calls notice a frame.

    def run(
        self,
        tensor: Any,
        name: str | None,
        process_set: ProcessSet,
        engine: Engine | None,
        arguments: Arguments,
        operands: Any = None,
    ) -> Any:
        """The result of one call.  Blocks; the calling thread does the engine's work meanwhile.

        arguments, operands: see `request`.
        """
        if engine is None:
            engine = engine_for_work()
        group = 0 if process_set is global_process_set else group_on(process_set, engine)
        key = number = None
        if operands is None and self.comes_again:
            if type(name) is str:
                key = (self, name, group)
            else:
                key, number = engine.key(self, self.kind, name, group, tensor)
            kept = engine.repeats.find(key, arguments, tensor)
            if kept is None:
                pass
            elif self.is_in_place:
                if kept.run(tensor, None, number):
                    return tensor
            elif self.is_new:
                output = self.adapter.like(tensor)
                if kept.run(tensor, output, number):
                    return output
            else:
                finish = self.adapter.result(tensor)
                handle = kept.start(Handle, tensor, False, finish, number, waits=True)
                if handle is not None:
                    return handle.result()
        draft = self._named(engine, name, number, group, arguments)
        composed = self.adapter.composed(
            draft, tensor, process_set, arguments, is_in_place=self.is_in_place
        )
        if composed is not None:
            return composed.wait()
        with draft:
            request = self.request(draft, tensor, arguments, operands)
        result = engine.run(request).result()
        self._keep(engine, key, request, arguments, tensor)
        return result

    def start(
        self,
        tensor: Any,
        name: str | None,
        process_set: ProcessSet,
        engine: Engine | None,
        arguments: Arguments,
        operands: Any = None,
    ) -> Any:
        """Like `run`, but returns the framework's handle at once."""
        if engine is None:
            engine = engine_for_work()
        group = 0 if process_set is global_process_set else group_on(process_set, engine)
        adapter = self.adapter
        key = number = None
        if operands is None and self.comes_again:
            if type(name) is str:
                key = (self, name, group)
            else:
                key, number = engine.key(self, self.kind, name, group, tensor)
            kept = engine.repeats.find(key, arguments, tensor)
            if kept is None:
                pass
            elif self.is_in_place:
                known = kept.start(adapter.handle, tensor, None, lambda _: tensor, number)
                if known is not None:
                    return known
            elif self.is_new:
                output = adapter.like(tensor)
                known = kept.start(adapter.handle, tensor, output, lambda _: output, number)
                if known is not None:
                    return known
            else:
                begun = kept.start(Handle, tensor, False, adapter.result(tensor), number)
                if begun is not None:
                    return adapter.started(begun)
        draft = self._named(engine, name, number, group, arguments)
        composed = adapter.composed(
            draft, tensor, process_set, arguments, is_in_place=self.is_in_place
        )
        if composed is not None:
            return composed
        with draft:
            request = self.request(draft, tensor, arguments, operands)
        (handle,) = engine.submit((request,))
        self._keep(engine, key, request, arguments, tensor)
        return adapter.started(handle)

    def _named(
        self, engine: Engine, name: str | None, number: str | None, group: int, arguments: Arguments
    ) -> Draft:
        if name is not None:
            number = self.name(name)
        elif number is None:
            number = engine.number_of(self.kind, group)
        return self.draft(engine, number, group, arguments)

    def _keep(
        self, engine: Engine, key: Any, request: Request, arguments: Arguments, tensor: Any
    ) -> None:
        """Lets the next call with equal arguments, for a tensor like this, come again."""
        source = request.input
        # What the extension module cannot read as it is comes on this way each time: a list, a scalar.
        fits = source is None or source.shape == getattr(tensor, "shape", None)
        if key is None or not fits or isinstance(tensor, TensorView):
            return
        if not self.is_new or self.adapter.has_like(tensor):
            engine.repeats.keep(key, (request,), arguments, (tensor,))

    def run_group(
        self,
        tensors: Sequence[Any],
        name: str | None,
        process_set: ProcessSet,
        engine: Engine | None,
        arguments: Arguments,
    ) -> Any:
        """The list of the results of one call on a list of tensors, which become ready together.  Blocks.

        Tensor i of a call named "w" is named "w.i".
        """
        return self._group(tensors, name, process_set, engine, arguments).wait()

    def start_group(
        self,
        tensors: Sequence[Any],
        name: str | None,
        process_set: ProcessSet,
        engine: Engine | None,
        arguments: Arguments,
    ) -> Any:
        """Like `run_group`, but returns the framework's handle of all of them, at once."""
        handle = self._group(tensors, name, process_set, engine, arguments)
        return self.adapter.started(handle) if isinstance(handle, GroupHandle) else handle

    def _group(
        self,
        tensors: Sequence[Any],
        name: str | None,
        process_set: ProcessSet,
        engine: Engine | None,
        arguments: Arguments,
    ) -> Any:
        if engine is None:
            engine = engine_for_work()
        group = 0 if process_set is global_process_set else group_on(process_set, engine)
        if type(tensors) is not list or not tensors:
            tensors = listed(tensors, lambda: self._named(engine, name, None, group, arguments))
        adapter = self.adapter
        again = engine.again_grouped(self, name, group, arguments, tensors)
        handle = None
        if not again.comes_again:
            pass
        elif self.is_in_place:
            handle = again.start()
        elif self.is_new:
            handle = again.start(list(map(adapter.like, tensors)))
        else:
            handle = again.start(finish=adapter.result)
        if handle is not None:
            return handle
        draft = self._named(engine, name, None, group, arguments)
        draft.count = len(tensors)
        composed = adapter.composed(
            draft, tensors, process_set, arguments, is_in_place=self.is_in_place
        )
        if composed is not None:
            return composed
        with draft:
            requests = [
                self.request(draft.member(index), tensor, arguments, None)
                for index, tensor in enumerate(tensors)
            ]
        handle = GroupHandle(engine.submit(requests))
        if not self.is_new or adapter.has_like(tensors[0]):
            again.keep(requests)
        return handle


class Made(Generic[Made_co]):
    """What a method of Operations returns, for type checkers: the result of a call, or its handle."""


def listed(tensors: Any, draft: Callable[[], Draft]) -> Sequence[Any]:
    """The tensors of a grouped call as a list or tuple of one or more.

    draft: names the call, which is refused here and on the other ranks if it has none.
    """
    if isinstance(tensors, (list, tuple)) and tensors:
        return tensors
    is_list = not hasattr(tensors, "shape") and not isinstance(tensors, (str, bytes, dict))
    if is_list and hasattr(tensors, "__iter__") and (found := list(tensors)):
        return found  # of model.parameters(), or the values of a dict
    is_empty = is_list and hasattr(tensors, "__iter__")
    made = draft()
    made.count = 1  # The others have one tensor or more: the first of them fails there.
    with made:
        raise InvalidArgument(
            f"{made}: a grouped operation takes a list of one or more tensors, not "
            f"{'an empty ' if is_empty else ''}{type(tensors).__name__}. "
            "For one tensor use the form without 'grouped_'."
        )


class Builder(Generic[HandleType]):
    """Makes the public functions of a module out of methods of Operations, which have their signatures."""

    def __init__(self, module: str) -> None:
        """module: its __name__."""
        self._module = module

    def starts(
        self, make: Callable[Parameters, Made[Any]], text: str
    ) -> Callable[Parameters, HandleType]:
        """The asynchronous form.  make: of Operations that start calls.  text: the docstring."""

        def start(*args: Parameters.args, **kwargs: Parameters.kwargs) -> HandleType:
            handle: Any = make(*args, **kwargs)
            return handle  # type: ignore[no-any-return]

        name = make.__name__
        return self._named(start, make, f"{name.rstrip('_')}_async{'_' * name.endswith('_')}", text)

    def waits(
        self, make: Callable[Parameters, Made[Result]], text: str
    ) -> Callable[Parameters, Result]:
        """The blocking form.  make: of Operations that wait for calls.  text: the docstring."""

        def run(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
            result: Any = make(*args, **kwargs)
            return result  # type: ignore[no-any-return]

        return self._named(run, make, make.__name__, text)

    def _named(self, function: Function, make: Any, name: str, text: str) -> Function:
        function.__name__ = function.__qualname__ = name
        function.__module__ = self._module
        function.__doc__ = text
        signature = inspect.signature(make).replace(return_annotation=inspect.Signature.empty)
        function.__signature__ = signature  # type: ignore[attr-defined]
        return function
