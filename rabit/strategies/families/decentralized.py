"""Methods of neighbours in place of all: see docs/reference/methods/decentralized.md."""

from __future__ import annotations

from rabit.training.strategy import Strategy

from ..decentralized import Decentralized as Decentralized
from ..decentralized import LowPrecisionRing as LowPrecisionRing
from ..gossip import Gossip as Gossip
from ..gossip import losing_links as losing_links
from ..minmax import MinMax8
from ..row import Method


def _gossip(graph: str = "ring", rounds: int = 1, every: int = 1) -> Strategy:
    return Gossip(graph, rounds, every)  # type: ignore[arg-type]  # it checks


def _lowprecision(block: int = 4096, every: int = 1) -> Strategy:
    return LowPrecisionRing(MinMax8(block), every=every)


def _decentralized(peers: str = "all", every: int = 1) -> Strategy:
    return Decentralized(peers, every)  # type: ignore[arg-type]  # it checks


ROWS: dict[str, Method] = {
    "decentralized": Method(
        _decentralized,
        "`x_i = mean(x)`, which travels during the backward pass; with `peers=shift-one` the mean of "
        "two, another partner each time",
        "32",
        "0",
        "long delays; peers=shift-one",
        "Lian et al., 2017",
    ),
    "gossip": Method(
        _gossip,
        "`x_i = Σ P_ij x_j`, `P_ij = 1/(1 + max(degree_i, degree_j))`",
        "64·rounds/every",
        "0",
        "a ring of neighbours, no one else waits",
        "Xiao and Boyd, 2004; Lian et al., 2017",
        survives=("resize",),
    ),
    "lowprecision": Method(
        _lowprecision,
        "a ring whose neighbours get differences in 8 bits",
        "16",
        "3",
        "rings of links below 1 Gbit/s",
        "Tang et al., 2018",
        survives=(),
    ),
}
