"""Methods that send thin factors: see docs/reference/methods/low_rank.md."""

from __future__ import annotations

from rabit.training.strategy import Strategy

from ..accordion import Accordion
from ..powersgd import PowerSGD as PowerSGD
from ..row import SMALL_BYTES, Method, usual


def _powersgd(rank: int = 2, start: int = 0, small: int = SMALL_BYTES) -> Strategy:
    return usual(PowerSGD(rank), small, start)


def _accordion(
    low: int = 4,
    high: int = 1,
    interval: int = 100,
    eta: float = 0.5,
    drop: float = 0.5,
    small: int = SMALL_BYTES,
) -> Strategy:
    return usual(Accordion(PowerSGD(low), PowerSGD(high), interval, eta, drop), small)


ROWS: dict[str, Method] = {
    "accordion": Method(
        _accordion,
        "PowerSGD of rank `low` while training changes fast, else `high`: see [adaptive](adaptive.md)",
        "as PowerSGD",
        "2",
        "PowerSGD where some phases bear little",
        "Agarwal et al., 2021",
    ),
    "powersgd": Method(
        _powersgd,
        "`P = orth(mean(M_i·Q))`, `Q = mean(M_iᵀ·P)`, `P·Qᵀ`; `start` steps of the plain mean before",
        "32·rank·(n+m)/(n·m)",
        "1",
        "large matrices on slow networks",
        "Vogels et al., 2019",
    ),
}
