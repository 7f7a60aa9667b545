"""What gradient methods put on the wire, by their own account.

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
