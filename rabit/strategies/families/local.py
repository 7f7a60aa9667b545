"""Methods of rare exchanges: see docs/reference/methods/local.md."""

from __future__ import annotations

from rabit.training.strategy import Strategy

from ..feedback import ErrorFeedback
from ..local_sgd import LocalSGD as LocalSGD
from ..local_sgd import OuterStep as OuterStep
from ..local_sgd import TakeMean as TakeMean
from ..outer_steps import Nesterov as Nesterov
from ..outer_steps import SlowMomentum as SlowMomentum
from ..row import Method, largest, powers


def _local(every: int = 8, start: int = 0) -> Strategy:
    return LocalSGD(every, start=start)


def _slowmo(every: int = 12, alpha: float = 1.0, beta: float = 0.5, start: int = 0) -> Strategy:
    return LocalSGD(every, SlowMomentum(alpha, beta), start=start)


def _diloco(every: int = 500, lr: float = 0.7, momentum: float = 0.9) -> Strategy:
    return LocalSGD(every, Nesterov(lr, momentum))


def _streaming(
    every: int = 100,
    fragments: int = 4,
    delay: int = 5,
    mix: float = 0.5,
    lr: float = 0.7,
    bits: int = 32,
) -> Strategy:
    # Powers of two in 4 bits are the paper's floats of three bits of exponent.
    exchange = powers(bits, 512) if bits < 32 else None
    outer = Nesterov(lr, 0.9)
    return LocalSGD(every, outer, exchange=exchange, fragments=fragments, delay=delay, mix=mix)


def _sparseloco(every: int = 30, ratio: float = 0.02, decay: float = 0.95) -> Strategy:
    exchange = ErrorFeedback(largest(ratio), decay)
    return LocalSGD(every, exchange=exchange)


ROWS: dict[str, Method] = {
    "diloco": Method(
        _diloco,
        "`m = momentum·m + Δ`, `anchor - lr·(Δ + momentum·m)`",
        "32/every",
        "2",
        "ranks far apart; long training",
        "Douillard et al., 2023",
    ),
    "local": Method(
        _local,
        "`anchor - Δ`: the mean of the parameters; with `start=1000` after 1000 steps of the mean gradient "
        "(post-local SGD)",
        "32/every",
        "1",
        "slow networks; start= for post-local SGD",
        "Stich, 2019; Lin et al., 2020",
    ),
    "slowmo": Method(
        _slowmo,
        "`u = beta·u + Δ/η`, `anchor - alpha·η·u`; η: learning rate, above 0",
        "32/every",
        "2",
        "Local SGD that trains worse than the mean",
        "Wang et al., 2020",
    ),
    "sparseloco": Method(
        _sparseloco,
        "`anchor - Δ`, where Δ is the largest `ratio` of the moves and a residual that fades",
        "64·ratio/every",
        "2",
        "ranks very far apart",
        "Sarfi et al., 2025",
    ),
    "streaming-diloco": Method(
        _streaming,
        "as `diloco` for one of `fragments` parts of the parameters at a time, applied `delay` steps later, "
        "`1 - mix` of it; `bits=4` sends moves as powers of two",
        "32/every",
        "2",
        "DiLoCo with an even load",
        "Douillard et al., 2025",
    ),
}
