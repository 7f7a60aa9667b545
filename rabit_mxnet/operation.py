"""Operation: one collective on MXNet arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import rabit
from rabit import Request


@dataclass(slots=True)
class Operation:
    """One collective whose result has a shape that is known before it runs.

    request: without the memory of the arrays, which is known when MXNet has computed them.
    source, target: arrays; the same one when it works in place.
    """

    request: Request
    source: Any
    target: Any

    @property
    def what(self) -> str:
        """How messages name the operation."""
        return f"{self.request.kind} '{self.request.name}' on rank {rabit.rank()}"
