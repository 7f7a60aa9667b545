"""What ranks compare of a gradient method, and report where they differ: its class and its numbers."""

from __future__ import annotations

import dataclasses
import enum
import inspect
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from .strategy import Strategy

__all__ = ["method_text"]


def method_text(method: Strategy | None) -> str:
    """As "LocalSGD(every=4, outer=TakeMean())"; None is "no strategy".

    Left out is what a rank may have for itself: private attributes, those in `own_of_rank`, and functions. Of
    other objects that are neither strategies nor dataclasses the class alone counts.
    """
    return "no strategy" if method is None else _text_of(method)


def _text_of(value: Any) -> str:
    if isinstance(value, enum.Enum):
        return str(value)
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"({', '.join(map(_text_of, value))})"
    fields: Mapping[str, Any] = {}
    if isinstance(value, Strategy):
        fields = {key: var for key, var in vars(value).items() if key not in _of_rank(value)}
    elif dataclasses.is_dataclass(value):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    shown = (
        f"{key}={_text_of(value)}"
        for key, value in fields.items()
        if not key.startswith("_") and not inspect.isroutine(value) and not isinstance(value, type)
    )
    return f"{type(value).__name__}({', '.join(shown)})"


def _of_rank(strategy: Strategy) -> Iterable[str]:
    return ("owner", "spec", "needs_of_ranks", *strategy.own_of_rank)
