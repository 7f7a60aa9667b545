"""torch.compile steps over the code of rabit, as it does over a backend in C++."""

from __future__ import annotations

import sys

__all__ = ["stay_untraced"]

_PACKAGES = ("rabit", "rabit_torch")
_is_told = False


def stay_untraced() -> None:
    """Tells torch's tracer not to follow calls into rabit, once that tracer is there.

    Compiled code that calls a group, such as a compiled DDP, has it run the methods of a group, which are Python;
    it cannot follow them, and fails.  Whoever trains has imported the tracer before anything is compiled; a
    script that does not is spared the second that it takes.
    """
    global _is_told
    if _is_told:
        return
    rules = getattr(sys.modules.get("torch._dynamo"), "trace_rules", None)
    if rules is None:
        return
    for package in _PACKAGES:
        rules.add(package)
    _is_told = True
