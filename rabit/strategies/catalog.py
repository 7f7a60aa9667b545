"""The catalog of gradient methods: one row for each that has a name.

A row is made in `families/FAMILY.py`.  From it `make` builds a method, `rabitrun --strategy help` prints a line,
and docs/tables.py writes a line of docs/reference/methods/FAMILY.md.  What a module of a family imports `as` itself is
public.
tests/support/rows.py has for each row what the suites must know, an oracle among it.
"""

from __future__ import annotations

from .families import (
    adaptive,
    asynchronous,
    decentralized,
    local,
    low_rank,
    momentum,
    quantisation,
    sparsification,
)
from .row import Method

__all__ = ["FAMILIES", "METHODS"]

# By the name of the family, which is that of its page: docs/reference/methods/FAMILY.md.
FAMILIES: dict[str, dict[str, Method]] = {
    "adaptive": adaptive.ROWS,
    "asynchronous": asynchronous.ROWS,
    "decentralized": decentralized.ROWS,
    "local": local.ROWS,
    "low_rank": low_rank.ROWS,
    "momentum": momentum.ROWS,
    "quantisation": quantisation.ROWS,
    "sparsification": sparsification.ROWS,
}

METHODS = {name: row for rows in FAMILIES.values() for name, row in rows.items()}
