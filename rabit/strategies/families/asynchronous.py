"""Methods that go by the clock: see docs/reference/methods/asynchronous.md."""

from __future__ import annotations

from rabit.training.strategy import Strategy

from ..any_batch import AnyBatch as AnyBatch
from ..async_average import AsyncAverage as AsyncAverage
from ..deadline import Deadline as Deadline
from ..mirror_descent import AnyBatchMirrorDescent as AnyBatchMirrorDescent
from ..mirror_maps import Entropy as Entropy
from ..mirror_maps import Euclidean as Euclidean
from ..mirror_maps import MirrorMap as MirrorMap
from ..row import Method


def _dabmd(graph: str = "all", rounds: int = 1) -> Strategy:
    return AnyBatchMirrorDescent(graph=graph, rounds=rounds)  # type: ignore[arg-type]  # it checks


ROWS: dict[str, Method] = {
    "anybatch": Method(
        AnyBatch,
        "`Σ g_i / Σ b_i`: each rank brings the sum over the b_i samples that it has managed",
        "32",
        "0",
        "ranks of unequal speed; set strategy.samples",
        "Ferdinand et al., 2019",
    ),
    "async": Method(
        AsyncAverage,
        "each rank as fast as it can; `x_i = x_i + mean(y) - y_i` when an average of earlier parameters y has come",
        "up to 32",
        "0",
        "ranks of unequal speed; no one waits",
        "Gan et al., 2021",
        survives=("resize",),
    ),
    "dabmd": Method(
        _dabmd,
        "`x_i = mirror(y_i, g_i/b_i, η)`, then `y_i = Σ P_ij b_j x_j / Σ P_ij b_j`",
        "32·neighbours·rounds",
        "0",
        "ranks of unequal speed in any graph; plain SGD, set strategy.samples",
        "Eshraghi and Liang, 2020",
        survives=("resize",),
    ),
}
