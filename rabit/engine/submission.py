"""Submission: how operations get into an engine."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rabit.config.config import Config
from rabit.engine.batch import Batch, encode_name, refuse, run, submit
from rabit.engine.engine_base import EngineBase
from rabit.engine.handle import Handle, wait_any
from rabit.engine.job import Job, JobRuntime
from rabit.engine.native_engine import NativeEngine
from rabit.engine.repeats import GroupRepeat, Repeats
from rabit.errors import InvalidArgument, RabitError
from rabit.types import Kind

if TYPE_CHECKING:
    from rabit.engine.request import Request

__all__ = ["Submission"]

# What a value raises that does not fit into the C form, such as a priority of 1.5.
_NO_C_FORM = (TypeError, ValueError, OverflowError)


def _refuse_no_key(name: Any) -> None:
    """Raises InvalidArgument for a name such as a list, which is neither text nor may be made into one."""
    try:
        hash(name)
    except TypeError:
        encode_name(name)


class Submission(EngineBase):
    """The part of an Engine that starts operations, names them and waits for them."""

    def __init__(self, config: Config, native: NativeEngine) -> None:
        super().__init__(config, native)
        self.repeats = Repeats(native)  # calls that may come again
        self._counters: dict[str, Iterator[int]] = {}
        self.joins = 0  # calls of join() that have ended

    def submit(self, requests: Sequence[Request]) -> list[Handle]:
        """Submits all of `requests` or none; returns at once.

        Raises InvalidArgument for a name that is in flight, NotInitialized after `close`.
        """
        try:
            return submit(self._native, requests)
        except _NO_C_FORM as error:
            raise self._without_form(requests, error) from None

    def _without_form(self, requests: Sequence[Request], error: Exception) -> Exception:
        """What is raised of `requests`, of which the others have been told."""
        if isinstance(error, RabitError):  # The library has refused them, and told.
            return error
        refusal = InvalidArgument(str(error))
        self.tell_error(requests, refusal)
        return refusal

    def refuse(self, request: Request, reason: str) -> None:
        """Says that this rank will not submit `request`, because of `reason`; it then raises that.

        The other ranks of the group raise InvalidArgument with it instead of waiting.  Of the request,
        kind, name, group and root count.
        """
        refuse(self._native, request, reason)

    def tell_error(self, requests: Sequence[Request], error: Exception) -> None:
        """`refuse` of requests that were not submitted because of `error`, which the caller raises.

        The other ranks get no report if the name is invalid, the engine has ended, or nobody waits.
        """
        from rabit.engine.request import Request  # Whoever has one has loaded it, and NumPy.

        kind = "" if isinstance(error, RabitError) else f"{type(error).__name__}: "
        for request in requests:
            with contextlib.suppress(Exception):  # The caller is to see `error` in any case.
                # A message is known by its partner; the root of others may be what has no C form.
                partner = request.root if request.kind in (Kind.SEND, Kind.RECV) else -1
                bare = Request(request.kind, request.name, group=request.group, root=partner)
                self.refuse(bare, f"{kind}{error}")

    def run(self, request: Request) -> Handle:
        """Submits `request` and waits for it, for a while; faster than submit and wait.

        The handle has finished, or is to be waited for as usual.
        """
        try:
            return run(self._native, request)
        except _NO_C_FORM as error:
            raise self._without_form((request,), error) from None

    def prepare(self, requests: Sequence[Request]) -> Batch:
        """Requests that will be submitted many times, in their C form."""
        try:
            return Batch(self._native, requests)
        except _NO_C_FORM as error:
            raise self._without_form((), error) from None  # Nobody waits for what is only prepared.

    def make_job(self, requests: Sequence[Request], runtime: JobRuntime) -> Job:
        """Requests for another runtime's dependency engine to submit; see Job.

        The engine must outlive the job.
        """
        return Job(self._native, requests, runtime)

    def next_name(self, name: str) -> str:
        """`name` for the first object that asks, then name.2, name.3, ...; equal on ranks as numbers are."""
        name = self._since_join(name)
        number = self._next_number(f"objects named {name}")
        return name if number == 1 else f"{name}.{number}"

    def auto_name(self, key: str) -> str:
        """A name for an operation that was given none; the engine knows its form, and soon forgets it."""
        return f"{key}.noname.{self._next_number(key)}"

    def number_of(self, kind: Kind, group: int) -> str:
        """The same for a collective of `group`."""
        return self.auto_name(self._since_join(str(kind) if group == 0 else f"{kind!s}.set{group}"))

    def _next_number(self, key: str) -> int:
        """1, 2, 3, ... for each key; equal on ranks that make the same calls in the same order."""
        counter = self._counters.get(key)
        if counter is None:  # Two threads that get here agree on one of two.
            counter = self._counters.setdefault(key, itertools.count(1))
        return next(counter)

    def _since_join(self, name: str) -> str:
        """What is counted under `name` from the last join() on: ranks that had joined missed what came before."""
        return f"{name}.join{self.joins}" if self.joins else name

    def key(
        self, caller: object, kind: Kind, name: str | None, group: int, tensor: Any
    ) -> tuple[tuple[Any, ...], str | None]:
        """Under what `repeats` keeps a call of the public function `caller`, and the operation's name if it
        has none: the number of its `kind`."""
        if name is not None:
            if type(name) is not str:
                _refuse_no_key(name)
            return (caller, name, group), None
        shape = getattr(tensor, "shape", None)
        shape = shape if isinstance(shape, tuple) else None
        return (caller, None, group, shape), self.number_of(kind, group)

    def again_grouped(
        self,
        caller: object,
        name: str | None,
        group: int,
        arguments: tuple[Any, ...],
        tensors: Sequence[Any],
    ) -> GroupRepeat:
        """A call of the public function `caller` for several tensors, which may have come before."""
        if name is not None and type(name) is not str:
            _refuse_no_key(name)
        key = None if name is None else (caller, name, group, len(tensors))
        return GroupRepeat(self.repeats, key, arguments, tensors)

    def wait_any(self, handles: Sequence[Handle], timeout: float | None = None) -> int:
        """Blocks until one of `handles` has finished, well or not; its place in the list.

        At most `timeout` seconds; then it raises TimedOut, and all stay in flight.
        """
        return wait_any(self._native, handles, timeout)
