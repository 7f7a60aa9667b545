"""Methods whose momentum travels: see docs/reference/methods/momentum.md."""

from __future__ import annotations

from rabit.training.strategy import Strategy

from ..demo import FrequencyMomentum as FrequencyMomentum
from ..feedback import ErrorFeedback
from ..onebit_adam import OneBitAdam as OneBitAdam
from ..onebit_lamb import OneBitLamb as OneBitLamb
from ..row import SMALL_BYTES, Method, eight_bits, signs
from ..synchronous import Bypass, Synchronous
from ..zero_one_adam import ZeroOneAdam as ZeroOneAdam


def _demo(momentum: float = 0.999, chunk: int = 64, count: int = 8, signs: bool = True) -> Strategy:
    return Synchronous(FrequencyMomentum(momentum, chunk, count, signs))


def _onebit_adam(warmup: int = 1000, block: int = 4096, small: int = SMALL_BYTES) -> Strategy:
    exchange = ErrorFeedback(signs(block))
    return OneBitAdam(Bypass(exchange, small), warmup)


def _onebit_lamb(warmup: int = 1000, block: int = 4096, small: int = SMALL_BYTES) -> Strategy:
    return OneBitLamb(Bypass(ErrorFeedback(signs(block)), small), warmup)


def _zero_one_adam(
    start: int = 1000,
    refresh: int = 16,
    grow: int = 1000,
    every: int = 16,
    block: int = 4096,
    small: int = SMALL_BYTES,
) -> Strategy:
    exchange = Bypass(ErrorFeedback(signs(block)), small)
    return ZeroOneAdam(exchange, start, refresh=refresh, grow=grow, every=every)


def _qadam(warmup: int = 100, block: int = 4096, small: int = SMALL_BYTES) -> Strategy:
    return OneBitAdam(Bypass(eight_bits(block), small), warmup)


ROWS: dict[str, Method] = {
    "demo": Method(
        _demo,
        "the strongest frequencies of each chunk of local momentum; their signs are applied",
        "48·count/chunk",
        "1",
        "below 1 Gbit/s; plain SGD, small learning rate",
        "Peng et al., 2024",
    ),
    "onebit-adam": Method(
        _onebit_adam,
        "until `warmup` Adam on the mean gradient; then `m = signs(β₁·m + (1-β₁)·g_i)`, and v stays",
        "1 after the warm-up",
        "2, and 2 residuals",
        "Adam; plain SGD as optimizer",
        "Tang et al., 2021",
    ),
    "onebit-lamb": Method(
        _onebit_lamb,
        "until `warmup` LAMB, and its mean ratio of each layer; then the same momentum, and the ratio is scaled by "
        "`max(√v/√w)` within [0.5, 4], w: the variance that is still updated",
        "1 after the warm-up",
        "3, and 2 residuals",
        "LAMB, large batches; plain SGD as optimizer",
        "Li et al., 2021",
    ),
    "qadam": Method(
        _qadam,
        "as `onebit-adam` in 8 bits, no residual",
        "8 after the warm-up",
        "2",
        "Adam; plain SGD as optimizer",
        "Gan et al., 2021",
    ),
    "zero-one-adam": Method(
        _zero_one_adam,
        "v and momentum take the mean gradient, ever less often, between them momentum in signs; "
        "from `start` on v stays, and ranks meet every 2, 4 … `every` steps",
        "1/every in the end",
        "4, and 2 residuals",
        "Adam over very slow links; plain SGD as optimizer",
        "Lu et al., 2022",
    ),
}
