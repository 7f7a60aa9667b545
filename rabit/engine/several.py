"""Several: operations that were started together, until somebody asks for the handle of one of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from rabit.engine.handle import SLICE_MS, Handle, begun

if TYPE_CHECKING:
    from rabit.engine.native_engine import NativeEngine

__all__ = ["Several"]


class Several:
    """They are waited for, and freed, in one call.  Any thread."""

    __slots__ = ("_consumer", "_finishes", "_names", "_native", "_tensors", "_values", "has_ended", "results")

    def __init__(
        self,
        native: NativeEngine,
        values: list[int],
        names: Sequence[str],
        tensors: Sequence[Any],
        finishes: Sequence[Callable[[Handle], Any]] | None,
        results: Sequence[Any],
        consumer: Callable[[], int] | None,
    ) -> None:
        """tensors: are kept while they are in use.  finishes: give what the handles give; None: `results` are that."""
        self._native = native
        self._values = values
        self._names = names
        self._tensors = tensors
        self._finishes = finishes
        self._consumer = consumer
        self.results = results
        self.has_ended = False  # all of them, well

    def __len__(self) -> int:
        return len(self._values)

    @property
    def has_results(self) -> bool:
        """Whether `results` are what the handles give."""
        return self._finishes is None

    def end(self) -> bool:
        """Waits for all; False: one has failed, or a stream waits in place of the host, and handles tell."""
        ended = 0
        while not self.has_ended and self._consumer is None:
            self._native.live_pointer()
            ended = self._native.calls.wait_several(self._values, ended, SLICE_MS)
            self.has_ended = ended == len(self._values)
            # One that has run out of its own time says so like a wait that has.
            if ended < 0 or (not self.has_ended and self._native.is_done(self._values[ended])):
                return False
        return self.has_ended

    def release(self) -> None:
        """Frees them, which have ended and have no handles."""
        self._native.release_several(self._values)

    def handles(self) -> list[Handle]:
        """One for each, whose it is from now on."""
        finishes = self._finishes or [_giving(each) for each in self.results]
        rows = zip(self._values, self._names, self._tensors, self.results, finishes, strict=True)
        made = [
            begun(Handle, self._native, value, name, (tensor, result), finish, self._consumer)
            for value, name, tensor, result, finish in rows
        ]
        if self.has_ended:
            for each in made:
                each.has_ended_well()
        return made


def _giving(result: Any) -> Callable[[Handle], Any]:
    return lambda _: result
