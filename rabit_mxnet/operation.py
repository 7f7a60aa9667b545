"""Operation: one collective on MXNet arrays."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import rabit
from rabit import Kind


@dataclass(slots=True)
class Operation:
    """One collective whose result has a shape that is known before it runs.

    source, target: arrays; the same one when it works in place.
    fields: more fields of rabit.Request.
    """

    kind: Kind
    name: str
    source: Any
    target: Any
    fields: dict[str, Any] = field(default_factory=dict)

    @property
    def what(self) -> str:
        """How messages name the operation."""
        return f"{self.kind} '{self.name}' on rank {rabit.rank()}"
