"""What the benches of gradient methods count on the wire."""

from __future__ import annotations

from typing import Any

__all__ = ["bytes_of_engine"]


def bytes_of_engine(rabit: Any) -> int:
    """Bytes that this rank has sent, without headers and acknowledgements, as the formulas count.

    rabit: the package of any framework, after init().
    """
    found = rabit.statistics()["backend_details"]["builtin"]["transport"]
    return int(found["bytes_sent"])
