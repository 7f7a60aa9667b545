"""What each gradient method puts on the wire, by its own account.

A formula gives the 32-bit words that one of W ranks sends in a step, for D entries in matrices of SIDE
rows and columns.  P1 is a sum, in which everybody's encoding is added up; P2 the same in two phases; P3
a gathering, in which everybody gets everything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

SIDE, MATRICES = 256, 4
D = MATRICES * SIDE * SIDE
ISLAND = 2


@dataclass(frozen=True)
class Account:
    """words: in a step, of `every` steps on average, after `after` steps.

    given: arguments that show the method in few steps; small parameters are encoded too.
    """

    words: Callable[[int], float]
    given: str = ""
    after: int = 0
    every: int = 1


def added(bits: float) -> Callable[[int], float]:
    """P1 and P2: of a part each, to its owner and back."""
    return lambda w: 2 * (w - 1) / w * D * bits / 32


def gathered(bits: float) -> Callable[[int], float]:
    """P3: the encoding of all entries, to every other rank."""
    return lambda w: (w - 1) * D * bits / 32


def factors(rank: int) -> Callable[[int], float]:
    """Two thin factors of every matrix, added up."""
    return lambda w: 2 * (w - 1) / w * MATRICES * rank * 2 * SIDE


def islands(bits: float) -> Callable[[int], float]:
    """All of it once within the island, and this rank's rows between two islands."""
    rows = D / ISLAND
    return lambda w: 2 * (ISLAND - 1) * rows + 2 * (1 - ISLAND / w) * rows * bits / 32


def to_peers(peers: int, bits: float = 32) -> Callable[[int], float]:
    return lambda w: peers * D * bits / 32


def per(steps: int, words: Callable[[int], float]) -> Callable[[int], float]:
    return lambda w: words(w) / steps


SCALE = 32 / 512  # bits an entry, of a scale for each block of 512
PAIR = 64 / 4096  # of a smallest and a largest one for each block of 4096
SIGNS = 1 + 32 / 4096

ACCOUNTS: dict[str, Account] = {
    "accordion": Account(factors(4)),  # It begins with the milder of its two.
    "adasum": Account(added(32)),
    "alq": Account(added(3 + SCALE), "every=1000", after=2),
    "amq": Account(added(3 + SCALE), "every=1000", after=2),
    "anybatch": Account(added(32)),
    "async": Account(added(32)),
    "bytegrad": Account(added(8 + PAIR)),
    "dabmd": Account(to_peers(2), "graph=ring"),
    "decentralized": Account(to_peers(1), "peers=shift-one", after=1),
    "demo": Account(gathered(48 * 8 / 64)),
    "dgc": Account(gathered(64 * 0.01), "ratio=0.01"),
    "diloco": Account(per(4, added(32)), "every=4", every=4),
    "ef21": Account(gathered(64 * 0.01)),
    "ef21-sgdm": Account(gathered(64 * 0.01)),
    "fp8": Account(added(8 + SCALE)),
    "gossip": Account(to_peers(2)),
    "hierarchical": Account(islands(8 + SCALE), f"island={ISLAND}"),
    "local": Account(per(4, added(32)), "every=4", every=4),
    "lowprecision": Account(to_peers(2, 8 + PAIR)),
    "mean": Account(added(32)),
    "natural": Account(added(9)),
    "nuqsgd": Account(added(4 + SCALE)),
    "onebit": Account(added(1 + 64 / 512)),
    "onebit-adam": Account(added(SIGNS), "warmup=1", after=1),
    "onebit-lamb": Account(added(SIGNS), "warmup=1", after=1),
    "powersgd": Account(factors(2)),
    "qadam": Account(added(8 + PAIR), "warmup=1", after=1),
    "qsgd": Account(added(8 + SCALE)),
    "randomk": Account(added(32 * 0.1)),
    "rowsparse": Account(gathered(32 / 4)),  # A quarter of the rows are not zero.
    "sign": Account(added(SIGNS)),
    "slowmo": Account(per(4, added(32)), "every=4", every=4),
    "sparseloco": Account(per(4, gathered(64 * 0.02)), "every=4", every=4),
    "streaming-diloco": Account(per(4, added(32)), "every=4,delay=0", after=4, every=4),
    "terngrad": Account(gathered(2 + 32 / 4096)),
    "topk": Account(gathered(64 * 0.01)),
    "wangni": Account(gathered(64 * 0.05)),
    "zero-one-adam": Account(
        per(4, added(SIGNS)), "start=1,refresh=1,grow=1,every=4", after=16, every=4
    ),
}

# Further arguments of methods that send something else by them: (name, its account).
VARIANTS: dict[str, tuple[str, Account]] = {
    "mean in 16 bits": ("mean", Account(added(16), "codec=bf16")),
    "qsgd in 3 bits": ("qsgd", Account(added(3 + SCALE), "bits=3")),
    "nuqsgd in 2 bits": ("nuqsgd", Account(added(2 + SCALE), "bits=2")),
    "decentralized with all": ("decentralized", Account(added(32), "peers=all", after=1)),
    "dabmd among all": ("dabmd", Account(lambda w: (w - 1) * D)),
    "powersgd of rank 1": ("powersgd", Account(factors(1), "rank=1")),
    "streaming in 4 bits": (
        "streaming-diloco",
        Account(per(4, added(4 + SCALE)), "every=4,delay=0,bits=4", after=4, every=4),
    ),
    "topk of a thousandth": ("topk", Account(gathered(64 * 0.001), "ratio=0.001")),
}
