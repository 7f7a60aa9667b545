"""Methods by name: "powersgd:rank=2"."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from rabit.errors import InvalidArgument
from rabit.training.strategy import Exchange, Strategy

if TYPE_CHECKING:
    from .row import Method

__all__ = ["as_strategy", "available", "defaults", "describe", "make"]

_TRUTH = {"True": True, "False": False}


def as_strategy(method: Strategy | Exchange | str) -> Strategy:
    """A strategy; a text is looked up, and of an exchange a strategy is made as its paper has it.

    That is: in every step, with error feedback if it is biased, and small parameters by the plain mean, unless it
    is a `Bypass` that says what is small.
    `Synchronous(exchange)` takes an exchange as it is.
    """
    if isinstance(method, Strategy):
        return method
    if isinstance(method, str):
        return make(method)
    if not isinstance(method, Exchange):
        raise InvalidArgument(
            f"strategy is {method!r}; use a rabit.strategies.Strategy or Exchange, or a text such as "
            f"'powersgd:rank=2' (known: {', '.join(available())})"
        )
    from .feedback import ErrorFeedback
    from .synchronous import Bypass, Synchronous

    usual = method if isinstance(method, Bypass) else Bypass(method)
    inner = ErrorFeedback(usual.inner) if usual.is_biased else usual.inner
    return Synchronous(dataclasses.replace(usual, inner=inner))


def available() -> list[str]:
    """The names of the methods that `make` knows."""
    return sorted(_methods())


def describe() -> str:
    """A text that lists every method with its parameters, for `rabitrun --strategy help`."""
    lines = ["Gradient methods: NAME or NAME:parameter=value,parameter=value", ""]
    for name in available():
        method = _methods()[name]
        lines.append(f"  {name}:{defaults(name)}".rstrip(":"))
        lines.append(f"      bits a coordinate: {method.bits}; keeps: {method.keeps}; {method.use}")
    lines.append("")
    lines.append("Bits: of 32, in a step.  Keeps: on each rank, in sizes of the parameters.")
    return "\n".join(lines) + "\n"


def make(spec: str) -> Strategy:
    """The strategy of a text: "name" or "name:key=value,key=value", with the method's arguments."""
    name, _, rest = spec.partition(":")
    methods = _methods()
    if name not in methods:
        raise InvalidArgument(
            f"strategy {spec!r}: there is no method {name!r}; {_nearest(name, methods)}"
            f"known: {', '.join(available())}"
        )
    build = methods[name].build
    known = inspect.signature(build).parameters
    given = {}
    for part in filter(None, rest.split(",")):
        key, is_pair, text = part.partition("=")
        if key in known and not is_pair:
            raise InvalidArgument(
                f"strategy {spec!r}: {key} has no value; write it as in {name}:{defaults(name)}"
            )
        if key not in known:
            raise InvalidArgument(
                f"strategy {spec!r}: {part!r} is not an argument of {name!r}; "
                f"{_nearest(key, known)}it takes {defaults(name) or 'none'}"
            )
        if key in given:
            raise InvalidArgument(
                f"strategy {spec!r}: {key} is given twice. Leave one of them out."
            )
        given[key] = _value(spec, key, text, known[key].default)
    try:
        strategy = build(**given)
        strategy.spec = spec
        return strategy
    except InvalidArgument as error:
        raise InvalidArgument(f"strategy {spec!r}: {error}") from error


def _methods() -> Mapping[str, Method]:
    """Loaded when they are asked for: most jobs use no method."""
    from .catalog import METHODS

    return METHODS


def _nearest(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), 1)
    return f"did you mean {near[0]!r}? " if near and near[0] != name else ""


def defaults(name: str) -> str:
    """The arguments of a method as its text has them: "rank=2,start=0,small=65536"."""
    known = inspect.signature(_methods()[name].build).parameters
    return ",".join(f"{row.name}={row.default}" for row in known.values())


def _value(spec: str, key: str, text: str, like: object) -> object:
    """`text` as a value of the type of `like`."""
    if isinstance(like, str):
        return text
    # Not by ast, whose parser fails now and then when several threads use it (CPython 3.11).
    read: Callable[[str], object] = _TRUTH.__getitem__ if isinstance(like, bool) else type(like)
    try:
        value = read(text)
    except (ValueError, KeyError):
        value = None
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        raise InvalidArgument(
            f"strategy {spec!r}: {key} is {text!r}, where {type(like).__name__} such as {like!r} is "
            "expected"
        )
    return value
