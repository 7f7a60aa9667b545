"""Methods that send fewer bits for each entry: see docs/reference/methods/quantisation.md."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from rabit.compression import Compression, CompressionCodec
from rabit.errors import InvalidArgument
from rabit.training.strategy import Exchange, Strategy

from ..clipped import Clipped
from ..codecs import Codec as Codec
from ..codecs import pack_bits as pack_bits
from ..codecs import unpack_bits as unpack_bits
from ..in_engine import InEngine as InEngine
from ..levels import Levels as Levels
from ..levels import geometric as geometric
from ..levels import uniform as uniform
from ..minmax import MinMax8 as MinMax8
from ..programs import Gathered as Gathered
from ..programs import TwoPhase as TwoPhase
from ..refit import FittedLevels as FittedLevels
from ..row import SMALL_BYTES, Method, eight_bits, levels, powers, signs, usual
from ..synchronous import Bypass, Mean, Synchronous


def _mean(codec: str = "") -> Strategy:
    if codec not in ("", "fp16", "bf16"):
        raise InvalidArgument(
            f"codec takes 'fp16' or 'bf16', in which sums travel, and not {codec!r}. What is encoded otherwise is a "
            "method by itself: 'qsgd', 'fp8', 'sign', ..."
        )
    return Synchronous(Mean(CompressionCodec(codec)))


def _fitted(
    fit: Literal["best", "powers"],
) -> Callable[..., Strategy]:
    def build(
        bits: int = 3, block: int = 512, first: int = 1, every: int = 1000, small: int = SMALL_BYTES
    ) -> Strategy:
        return usual(FittedLevels(bits, block, first, every, fit), small)

    return build


def _onebit(block: int = 512, small: int = SMALL_BYTES) -> Strategy:
    return usual(InEngine(Compression.two_means(block)), small)


def _fp8(block: int = 512, small: int = SMALL_BYTES) -> Strategy:
    return usual(InEngine(Compression.fp8(block)), small)


def _sign(block: int = 4096, small: int = SMALL_BYTES) -> Strategy:
    return usual(signs(block), small)


def _qsgd(bits: int = 8, block: int = 512, small: int = SMALL_BYTES) -> Strategy:
    return usual(levels(bits, block), small)


def _nuqsgd(bits: int = 4, block: int = 512, small: int = SMALL_BYTES) -> Strategy:
    return usual(powers(bits, block), small)


def _terngrad(clip: float = 2.5, block: int = 4096, small: int = SMALL_BYTES) -> Strategy:
    exchange: Exchange = InEngine(Compression.levels(2, block, phases=1))
    return Synchronous(Bypass(Clipped(exchange, clip) if clip else exchange, small))


def _natural(small: int = SMALL_BYTES) -> Strategy:
    return usual(InEngine(Compression.natural()), small)


def _bytegrad(block: int = 4096, small: int = SMALL_BYTES) -> Strategy:
    return usual(eight_bits(block), small)


ROWS: dict[str, Method] = {
    "alq": Method(
        _fitted("best"),
        "levels that minimise `Σ (l₊ - r)(r - l₋)` over a histogram of all ranks' `r = abs(x)/s`, "
        "by dynamic programming",
        "bits",
        "0",
        "unbiased, 2 to 4 bits, levels fitted to the gradients",
        "Faghri et al., 2020",
    ),
    "amq": Method(
        _fitted("powers"),
        "as `alq`, among the levels `p^j`",
        "bits",
        "0",
        "as alq, with levels that are powers",
        "Faghri et al., 2020",
    ),
    "bytegrad": Method(
        _bytegrad,
        "one of 256 steps between the smallest and the largest of the block, the nearest",
        "8",
        "0",
        "slow networks, nothing to tune",
        "Gan et al., 2021",
    ),
    "fp8": Method(
        _fp8,
        "8-bit floats (4 bits of exponent) of `x/s`, at random",
        "8",
        "0",
        "unbiased; entries of very different size",
        "Micikevicius et al., 2022",
    ),
    "mean": Method(
        _mean,
        "`x' = (1/W) Σ x_i`; with `codec=bf16` or `fp16` of the nearest 16-bit floats",
        "32; codec=bf16: 16",
        "0",
        "the default",
        "Li et al., 2020",
    ),
    "natural": Method(
        _natural,
        "one of the two nearest powers of two, at random",
        "9",
        "0",
        "unbiased, with little variance",
        "Horváth et al., 2019",
    ),
    "nuqsgd": Method(
        _nuqsgd,
        "0 or `s/2^j`, of the two neighbours one at random",
        "bits",
        "0",
        "unbiased; many small entries",
        "Ramezani-Kebrya et al., 2021",
    ),
    "onebit": Method(
        _onebit,
        "the mean of the block's entries of its sign, residuals on both ways",
        "1",
        "2",
        "slow networks; as sign, with two means for each block",
        "Seide et al., 2014",
    ),
    "qsgd": Method(
        _qsgd,
        "`s·j/L` for `j = ⌊L·abs(x)/s + u⌋`, u in [0, 1) at random, `L = 2^(bits-1) - 1`",
        "bits",
        "0",
        "unbiased; slow networks",
        "Alistarh et al., 2017",
    ),
    "sign": Method(
        _sign,
        "`sign(x)·Σ abs(x)/block`, residuals on both ways",
        "1",
        "2",
        "slow networks, large models",
        "Karimireddy et al., 2019; Tang et al., 2019",
    ),
    "terngrad": Method(
        _terngrad,
        "-1, 0 or 1 times `s`, at random, after clipping at `clip` times the root of the mean square",
        "2",
        "0",
        "unbiased; few ranks",
        "Wen et al., 2017",
    ),
}
