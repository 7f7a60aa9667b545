"""Texts of every method, so that it does all that it does in few steps on small parameters."""

from __future__ import annotations

import inspect

from rabit.strategies.catalog import METHODS

GIVEN = {
    "alq": "every=2",
    "amq": "every=2",
    "diloco": "every=2",
    "hierarchical": "island=1",
    "local": "every=2",
    "randomk": "ratio=0.5",  # What is bad waits in the residual until it is chosen.
    "slowmo": "every=2",
    "sparseloco": "every=2",
    "streaming-diloco": "every=4,delay=1",
    "wangni": "ratio=0.5",  # Of one entry, so many steps send it.
    "zero-one-adam": "start=2,refresh=1,grow=2,every=2",
    "onebit-adam": "warmup=2",
    "onebit-lamb": "warmup=2",
    "qadam": "warmup=2",
}


def text_of(name: str) -> str:
    parts = [GIVEN[name]] if name in GIVEN else []
    if "small" in inspect.signature(METHODS[name].build).parameters:
        parts.append("small=0")
    return ":".join(filter(None, [name, ",".join(parts)]))
