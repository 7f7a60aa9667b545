"""Methods around other methods: see docs/reference/methods/adaptive.md."""

from __future__ import annotations

from rabit.training.strategy import Strategy

from ..accordion import Accordion as Accordion
from ..adasum import AdaptiveSum as AdaptiveSum
from ..clipped import Clipped as Clipped
from ..feedback import ErrorFeedback as ErrorFeedback
from ..hierarchical import Hierarchical as Hierarchical
from ..phases import Phases as Phases
from ..row import SMALL_BYTES, Method, levels, usual
from ..synchronous import Bypass as Bypass
from ..synchronous import Mean as Mean
from ..synchronous import Synchronous as Synchronous


def _hierarchical(
    bits: int = 8, block: int = 512, island: int = 0, small: int = SMALL_BYTES
) -> Strategy:
    return usual(Hierarchical(levels(bits, block), island), small)


def _adasum() -> Strategy:
    return Synchronous(AdaptiveSum())


ROWS: dict[str, Method] = {
    "adasum": Method(
        _adasum,
        "a, b → `(1 - a·b/2abs(a)²)·a + (1 - a·b/2abs(b)²)·b`, along a tree of the ranks",
        "64",
        "0",
        "many ranks at the learning rate of one",
        "Maleki et al., 2021",
        survives=("resize",),
    ),
    "hierarchical": Method(
        _hierarchical,
        "the mean inside a host (or `island` successive ranks), `qsgd` between hosts, each rank for its rows",
        "32 in the island; bits/island beyond",
        "0",
        "fast hosts of as many ranks each, slow links between them",
        "Gan et al., 2021; Jia et al., 2018",
        survives=("join",),
    ),
}
