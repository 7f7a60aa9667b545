"""What the suites must know of each gradient method: a row for each, which all of them read.

tests/bench/methods_digits.py and methods_text.py have the rates and arguments with which a method is trained in
earnest; tests/unit/strategies/test_rows.py says of what a method has not got yet.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass

from rabit.strategies.catalog import METHODS

from .method_bytes import (
    ISLAND,
    PAIR,
    SCALE,
    SIGNS,
    Account,
    added,
    factors,
    gathered,
    islands,
    per,
    to_peers,
)

__all__ = ["ROWS", "Row", "text_of"]


@dataclass(frozen=True)
class Row:
    """account: what it puts on the wire.

    rounding: the cases of tests/conformance/test_unbiased.py that are its codecs, or why it has none.
    short: arguments with which a few steps of small parameters show all that it does.
    learns: arguments and learning rate with which some hundred steps of a small layer come to what the mean does.
    works_in_step: on parameters, of which hooks for gradients alone are not told: those refuse it.
    survives: "join", a rank that has left; "resize", an elastic job's ranks.  What is not here is refused.
    """

    account: Account
    rounding: tuple[str, ...] | str
    short: str = ""
    learns: tuple[str, float] = ("", 0.5)
    works_in_step: bool = False
    survives: tuple[str, ...] = ("join", "resize")


EXACT, BIASED, NEAREST = "exact", "biased, with a residual", "rounds to the nearest"
QSGD = ("qsgd, 2 bits", "qsgd, 3 bits", "qsgd, 8 bits", "qsgd in the engine")
NUQSGD = ("nuqsgd", "nuqsgd in the engine")
FITTED = ("alq and amq",)


def moves(words: Callable[[int], float], every: int = 4, more: str = "") -> Account:
    return Account(per(every, words), f"every={every}{more}", every=every)


ROWS: dict[str, Row] = {
    # It begins with the milder of its two.
    "accordion": Row(Account(factors(4)), BIASED, "interval=2"),
    "adasum": Row(Account(added(32)), EXACT, survives=("resize",)),
    "alq": Row(Account(added(3 + SCALE), "every=1000", after=2), FITTED, "every=2"),
    "amq": Row(Account(added(3 + SCALE), "every=1000", after=2), FITTED, "every=2"),
    "anybatch": Row(Account(added(32)), EXACT),
    "async": Row(Account(added(32)), EXACT, works_in_step=True, survives=("resize",)),
    "bytegrad": Row(Account(added(8 + PAIR)), NEAREST),
    "dabmd": Row(
        Account(to_peers(2), "graph=ring"), EXACT, works_in_step=True, survives=("resize",)
    ),
    "decentralized": Row(
        Account(to_peers(1), "peers=shift-one", after=1), EXACT, works_in_step=True
    ),
    "demo": Row(
        Account(gathered(48 * 8 / 64)),
        BIASED,
        "chunk=8,count=2",
        learns=("count=16,momentum=0.9", 0.02),
    ),
    "dgc": Row(
        Account(gathered(64 * 0.01), "ratio=0.01"),
        BIASED,
        "ratio=0.1,ramp=1",
        learns=("ratio=0.2,momentum=0.5", 0.25),
    ),
    "diloco": Row(
        moves(added(32)),
        EXACT,
        "every=2",
        learns=("every=4,lr=0.5,momentum=0.5", 0.5),
        works_in_step=True,
    ),
    "ef21": Row(Account(gathered(64 * 0.01)), BIASED, "ratio=0.1", learns=("ratio=0.2", 0.5)),
    "ef21-sgdm": Row(
        Account(gathered(64 * 0.01)), BIASED, "ratio=0.1", learns=("ratio=0.2,rate=0.3", 0.5)
    ),
    "fp8": Row(Account(added(8 + SCALE)), ("fp8", "fp8 in the engine")),
    "gossip": Row(Account(to_peers(2)), EXACT, works_in_step=True, survives=("resize",)),
    "hierarchical": Row(
        Account(islands(8 + SCALE), f"island={ISLAND}"),
        ("qsgd, 8 bits", "qsgd in the engine"),
        "island=1",
        learns=("island=1", 0.5),
        survives=("join",),
    ),
    "local": Row(moves(added(32)), EXACT, "every=2", works_in_step=True),
    "lowprecision": Row(Account(to_peers(2, 8 + PAIR)), NEAREST, works_in_step=True, survives=()),
    "mean": Row(Account(added(32)), EXACT),
    "natural": Row(Account(added(9)), ("natural", "natural in the engine")),
    "nuqsgd": Row(Account(added(4 + SCALE)), NUQSGD),
    "onebit": Row(Account(added(1 + 64 / 512)), BIASED, learns=("block=32", 0.25)),
    "onebit-adam": Row(
        Account(added(SIGNS), "warmup=1", after=1),
        BIASED,
        "warmup=2",
        learns=("warmup=40,block=32", 0.03),
    ),
    "onebit-lamb": Row(
        Account(added(SIGNS), "warmup=1", after=1),
        BIASED,
        "warmup=2",
        learns=("warmup=80,block=32", 0.05),
    ),
    "powersgd": Row(Account(factors(2)), BIASED),
    "qadam": Row(
        Account(added(8 + PAIR), "warmup=1", after=1),
        NEAREST,
        "warmup=2",
        learns=("warmup=40", 0.03),
    ),
    "qsgd": Row(Account(added(8 + SCALE)), QSGD),
    # What is bad waits in the residual until it is chosen.
    "randomk": Row(Account(added(32 * 0.1)), ("randomk",), "ratio=0.5"),
    # A quarter of the rows are not zero.
    "rowsparse": Row(Account(gathered(32 / 4)), EXACT),
    "sign": Row(Account(added(SIGNS)), BIASED, learns=("block=32", 0.25)),
    "slowmo": Row(moves(added(32)), EXACT, "every=2", learns=("every=4", 0.25), works_in_step=True),
    "sparseloco": Row(
        moves(gathered(64 * 0.02)),
        BIASED,
        "every=2,ratio=0.1",
        learns=("every=4,ratio=0.3", 0.5),
        works_in_step=True,
    ),
    "streaming-diloco": Row(
        Account(per(4, added(32)), "every=4,delay=0", after=4, every=4),
        NUQSGD,
        "every=4,fragments=2,delay=1",
        learns=("every=8,delay=2", 0.5),
        works_in_step=True,
    ),
    "terngrad": Row(
        Account(gathered(2 + 32 / 4096)),
        ("terngrad", "terngrad in the engine"),
        learns=("block=64", 0.25),
    ),
    "topk": Row(Account(gathered(64 * 0.01)), BIASED, "ratio=0.1", learns=("ratio=0.2", 0.5)),
    # Of one entry, so many steps send it.
    "wangni": Row(
        Account(gathered(64 * 0.05)),
        ("wangni", "wangni in the engine"),
        "ratio=0.5",
        learns=("ratio=0.3", 0.25),
    ),
    "zero-one-adam": Row(
        Account(per(4, added(SIGNS)), "start=1,refresh=1,grow=1,every=4", after=16, every=4),
        BIASED,
        "start=2,refresh=1,grow=2,every=2",
        learns=("start=60,grow=30,every=4,block=8", 0.02),
        works_in_step=True,
    ),
}


def text_of(name: str, arguments: str | None = None) -> str:
    """A text of the method that encodes small parameters too; arguments: None: those of its row that are `short`."""
    parts = [ROWS[name].short if arguments is None else arguments]
    if "small" in inspect.signature(METHODS[name].build).parameters:
        parts.append("small=0")
    return ":".join(filter(None, [name, ",".join(filter(None, parts))]))
