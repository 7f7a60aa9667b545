"""Methods that send few entries: see docs/reference/methods/sparsification.md."""

from __future__ import annotations

from rabit.compression import Compression
from rabit.training.strategy import Strategy

from ..dgc import MomentumCorrection as MomentumCorrection
from ..ef21 import Differences as Differences
from ..in_engine import InEngine
from ..local_momentum import LocalMomentum as LocalMomentum
from ..phases import Phases
from ..row import SMALL_BYTES, Method, largest, usual
from ..row_sparse import RowSparse as RowSparse
from ..synchronous import Bypass, Mean, Synchronous
from ..topk import LargestEntries as LargestEntries
from ..topk import RandomK as RandomK


def _topk(ratio: float = 0.01, start: int = 0, small: int = SMALL_BYTES) -> Strategy:
    return usual(largest(ratio), small, start)


def _randomk(ratio: float = 0.1, scale: bool = False, small: int = SMALL_BYTES) -> Strategy:
    return usual(RandomK(ratio, scale), small)


def _dgc(
    ratio: float = 0.001,
    momentum: float = 0.9,
    clip: float = 0.0,
    ramp: int = 0,
    small: int = SMALL_BYTES,
) -> Strategy:
    inner = largest(ratio)
    for number, denser in reversed(list(enumerate((0.25, 0.063, 0.015, 0.004), 1))):
        if ramp and denser > ratio:
            inner = Phases(number * ramp, inner, largest(denser))
    correction = MomentumCorrection(inner, momentum, clip=clip)
    # Small parameters are complete in every step: their momentum is the plain one.
    rest = MomentumCorrection(Mean(), momentum, masks=False)
    return Synchronous(Bypass(correction, small, rest))


def _ef21(ratio: float = 0.01, small: int = SMALL_BYTES) -> Strategy:
    return usual(Differences(largest(ratio)), small)


def _ef21_sgdm(ratio: float = 0.01, rate: float = 0.1, small: int = SMALL_BYTES) -> Strategy:
    # Small parameters are complete in every step, and have the same momentum.
    large = LocalMomentum(Differences(largest(ratio)), rate)
    return Synchronous(Bypass(large, small, LocalMomentum(Mean(), rate)))


def _wangni(ratio: float = 0.05, small: int = SMALL_BYTES) -> Strategy:
    return usual(InEngine(Compression.by_chance(ratio)), small)


def _rowsparse(small: int = SMALL_BYTES) -> Strategy:
    return usual(RowSparse(), small)


ROWS: dict[str, Method] = {
    "dgc": Method(
        _dgc,
        "`u = 0.9·u + x`, `v = v + u`, the largest of v; where it was sent, u and v are 0",
        "64·ratio",
        "2",
        "very slow networks, few ranks; plain SGD",
        "Lin et al., 2018",
    ),
    "ef21": Method(
        _ef21,
        "the largest of `x - h`; `h = h + sent`, and the mean of all h is the gradient",
        "64·ratio",
        "2",
        "ranks with different data",
        "Richtárik et al., 2021",
    ),
    "ef21-sgdm": Method(
        _ef21_sgdm,
        "as `ef21`, of `v = (1-rate)·v + rate·x`",
        "64·ratio",
        "3",
        "EF21 with small batches; plain SGD",
        "Fatkhullin et al., 2023",
    ),
    "randomk": Method(
        _randomk,
        "one entry at random of each 1/ratio in a row, the same on all ranks: places need not travel",
        "32·ratio",
        "1",
        "many ranks",
        "Stich et al., 2018",
    ),
    "rowsparse": Method(
        _rowsparse,
        "rows that are not zero: exact",
        "by the rows",
        "0",
        "embedding tables; exact",
        "",
    ),
    "topk": Method(
        _topk,
        "the largest of `p = x + e`; `e = p - sent`",
        "64·ratio",
        "1",
        "very slow networks, few ranks",
        "Aji and Heafield, 2017; Stich et al., 2018",
    ),
    "wangni": Method(
        _wangni,
        "entry i with the chance `p_i = min(λ·abs(x_i), 1)`, as `x_i/p_i`: unbiased",
        "64·ratio",
        "0",
        "unbiased and sparse; slow networks, few ranks",
        "Wangni et al., 2018",
    ),
}
