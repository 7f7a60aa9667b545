"""What a row of the catalog says of a method, and what builders of several families share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rabit.compression import Compression
from rabit.training.strategy import Exchange, Strategy

from .feedback import ErrorFeedback
from .in_engine import InEngine
from .phases import Phases
from .ranges import check
from .synchronous import Bypass, Synchronous

__all__ = ["SMALL_BYTES", "Method", "eight_bits", "largest", "levels", "powers", "signs", "usual"]

# Parameters below go as plain means, unless a text says otherwise.
SMALL_BYTES = 64 * 1024


@dataclass(frozen=True)
class Method:
    """One method that has a name.

    build: makes it; its arguments and their defaults are those of the text.
    does: what becomes of the gradients x of the ranks, or of the parameters, in a line of Markdown.
    bits: what one rank sends for each element in a step, for few ranks.  keeps: on each rank, in
    sizes of the parameter.
    use: when it is worth a try, and what it needs.  source: its papers, as "Vogels et al., 2019".
    survives: "join", a rank that has left; "resize", an elastic job's ranks.  What is not here is refused.
    """

    build: Callable[..., Strategy]
    does: str
    bits: str
    keeps: str
    use: str
    source: str
    survives: tuple[str, ...] = ("join", "resize")


def usual(exchange: Exchange, small: int, start: int = 0) -> Strategy:
    """In every step, with error feedback if it is biased, and small parameters by the plain mean."""
    if exchange.is_biased:
        exchange = ErrorFeedback(exchange)
    if start:
        exchange = Phases(start, exchange)
    return Synchronous(Bypass(exchange, small))


def largest(ratio: float) -> Exchange:
    return InEngine(Compression.topk(ratio))


def signs(block: int) -> Exchange:
    return InEngine(Compression.sign(block, phases=2))


def eight_bits(block: int) -> Exchange:
    return InEngine(Compression.minmax8(block))


def levels(bits: int, block: int) -> Exchange:
    check("levels", "bits", bits, "2..8")
    return InEngine(Compression.levels(bits, block))


def powers(bits: int, block: int) -> Exchange:
    check("levels", "bits", bits, "2..8")
    return InEngine(Compression.levels(bits, block, "exponential"))
