"""torch.compile steps over the code of rabit, as it does over a backend in C++."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch

__all__ = ["stay_untraced", "untraced"]

_Function = TypeVar("_Function", bound=Callable[..., Any])

_PACKAGES = ("rabit", "rabit_torch")
_is_told = False


def _loaded_tracer() -> Any:
    return sys.modules.get("torch._dynamo")


# What follows the frames that this thread begins; None: nothing does.
_tracer: Callable[[], Any] = getattr(
    torch._C._dynamo.eval_frame, "get_eval_frame_callback", _loaded_tracer
)


def untraced(function: _Function) -> _Function:
    """torch.compiler.disable, which loads the tracer (a second), for those calls that the tracer would follow."""
    disabled: list[Callable[..., Any]] = []

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if _tracer() is None:
            return function(*args, **kwargs)
        if not disabled:
            disable: Any = torch.compiler.disable
            disabled.append(disable(function))
        return disabled[0](*args, **kwargs)

    call._torchdynamo_disable = True  # type: ignore[attr-defined]
    return cast("_Function", call)


def stay_untraced() -> None:
    """Tells torch's tracer not to follow calls into rabit, once that tracer is there.

    Compiled code that calls a group, such as a compiled DDP, has it run the methods of a group, which are Python;
    it cannot follow them, and fails.  A program that trains has imported the tracer before anything is compiled; a
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
