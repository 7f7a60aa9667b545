"""Again: one call of a public function that may have come before, and then is not prepared anew.

See rabit/engine/repeats.py.
"""

from __future__ import annotations

from typing import Any

from rabit.engine.current import engine_for_work
from rabit.engine.engine import Engine
from rabit.engine.handle import Finish, Handle
from rabit.engine.process_set import ProcessSet, global_process_set, group_on
from rabit.engine.request import Request
from rabit.engine.tensor import TensorView
from rabit.types import Kind

__all__ = ["Again"]


class Again:
    """What a call has in common with the one before.

    engine: the one it is for; name: the operation's, numbered if the caller gave none; tensor and arguments: of
    the call.
    """

    __slots__ = ("_is_alone", "_kept", "_key", "_number", "arguments", "engine", "name", "tensor")

    def __init__(
        self,
        caller: str,
        kind: Kind,
        tensor: Any,
        name: str | None,
        process_set: ProcessSet,
        engine: Engine | None,
        arguments: tuple[Any, ...],
        *,
        is_alone: bool = False,
    ) -> None:
        """caller: the public function.  arguments: its others.  is_alone: it is not to come again."""
        engine = engine_for_work() if engine is None else engine
        group = 0 if process_set is global_process_set else group_on(process_set, engine)
        self.engine = engine
        self._key, self._number = engine.key(caller, kind, name, group, tensor)
        self.name = self._number or name or ""
        self.arguments = arguments
        self._is_alone = is_alone
        self._kept = None if is_alone else engine.repeats.find(self._key, arguments, tensor)
        self.tensor = tensor

    @property
    def comes_again(self) -> bool:
        """False: it is to be prepared, whatever the tensor."""
        return self._kept is not None

    def run(self, output: Any) -> bool:
        """Runs it into `output`, None: in place, and waits; False: it is to be prepared."""
        kept = self._kept
        return kept is not None and kept.run(self.tensor, output, self._number)

    def start(self, output: Any, finish: Finish | None) -> Handle | None:
        """Starts it; None: it is to be prepared.

        output: None is in place, False has the engine allocate it.
        finish: makes of the finished handle what its `result` returns; None: the engine's output.
        """
        kept = self._kept
        if kept is None:
            return None
        return kept.start(Handle, self.tensor, output, finish, self._number)

    def submit(self, request: Request) -> Handle:
        """Submits `request`, which was prepared for this call, so that the next one need not be."""
        handle = self.engine.submit((request,))[0]
        self.keep(request)
        return handle

    def keep(self, request: Request) -> None:
        """The same of one that has been submitted."""
        source = request.input
        # What the extension module cannot read as it is comes on this way each time: a list, a scalar.
        fits = source is None or source.shape == getattr(self.tensor, "shape", None)
        if fits and not self._is_alone and not isinstance(self.tensor, TensorView):
            self.engine.repeats.keep(self._key, (request,), self.arguments, (self.tensor,))
