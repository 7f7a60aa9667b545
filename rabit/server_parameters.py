"""ServerParameters: parameters that live on the summation servers, which ranks update without waiting."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from rabit.engine.current import default_engine
from rabit.engine.engine import Engine
from rabit.engine.tensor import dtype_of
from rabit.errors import InvalidArgument

__all__ = ["ServerParameters"]

_ADD, _FILL, _CLOCK = 1, 2, 3


class ServerParameters:
    """An array that the servers of the job keep, and to which every rank adds whenever it is ready.

    values: what the servers keep if they have nothing under this name yet, equal on all ranks; it is
        what they keep afterwards: a rank that comes late continues from there.  C-contiguous, in the memory
        of the host.
    name: what the ranks call it.
    staleness: how many steps this rank may be ahead of the slowest one; -1: as many as it likes.  None:
        RABIT_PS_STALENESS.
    engine: whose servers; None: the default one.

    Needs RABIT_PS_ASYNC=1 and servers (`rabitrun -s`).  No other rank is asked or waited for, except
    for the bound, for which every rank of the job counts until it closes this or shuts down.  Blocks
    for the servers' answer.  One call at a time.

    Raises InvalidArgument for arrays that cannot be sent, Unsupported in a job without such servers::

        weights = np.zeros(10, np.float32)
        shared = rabit.ServerParameters(weights, name="weights")
        for step in range(100):
            delta = -0.1 * gradient(weights)
            shared.add(delta)       # delta is what the servers keep now
            weights[:] = delta
            shared.end_step()
    """

    def __init__(
        self,
        values: np.ndarray[Any, Any],
        *,
        name: str,
        staleness: int | None = None,
        engine: Engine | None = None,
    ) -> None:
        self._engine = default_engine() if engine is None else engine
        self._staleness = self._engine.config.ps_staleness if staleness is None else staleness
        self._shape, self._dtype, self._name = values.shape, values.dtype, name
        words = f"{name}\0{values.dtype.str}\0{values.size}"
        digest = hashlib.blake2b(words.encode(), digest_size=8).digest()
        self._key = int.from_bytes(digest, "little")
        self._steps = 0
        self._is_closed = False
        self._send(_FILL, values)
        self._engine.before_close(self.close)

    def add(self, delta: np.ndarray[Any, Any]) -> None:
        """Adds `delta` to what the servers keep, and makes it what they keep then.

        Has the shape and the type of the values.  Blocks for the servers' answer.
        """
        self._send(_ADD, delta)

    def end_step(self) -> int:
        """Says that this rank has finished a step; returns how many it is ahead of the slowest rank.

        Blocks while that is more than the staleness allows.
        """
        self._steps += 1
        return self._advance(self._steps)

    def close(self) -> None:
        """Takes no further part: no rank waits for this one.  Does not block.  Again: does nothing."""
        if not self._is_closed:
            self._is_closed = True
            self._advance(-1)

    def _send(self, mode: int, array: np.ndarray[Any, Any]) -> None:
        if array.shape != self._shape or array.dtype != self._dtype or not array.flags.c_contiguous:
            raise InvalidArgument(
                f"'{self._name}' of rank {self._engine.rank} is {self._dtype}{list(self._shape)} on the servers, "
                f"and this is {array.dtype}{list(array.shape)}, "
                f"{'' if array.flags.c_contiguous else 'not '}contiguous. Give it the same shape and type, in "
                "one piece."
            )
        if array.size:
            kind = dtype_of(array.dtype, self._name)
            self._engine.update(self._key, mode, array.ctypes.data, array.size, int(kind))

    def _advance(self, step: int) -> int:
        clock = np.array([step, self._staleness], np.int64)
        kind = dtype_of(clock.dtype, self._name)
        self._engine.update(self._key, _CLOCK, clock.ctypes.data, clock.size, int(kind))
        return int(clock[0])
