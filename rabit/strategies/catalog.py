"""What each text of `make` builds: the methods as their papers have them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from rabit.compression import Compression, CompressionCodec
from rabit.errors import InvalidArgument
from rabit.training.strategy import Exchange, Strategy

from .accordion import Accordion
from .adasum import AdaptiveSum
from .any_batch import AnyBatch
from .async_average import AsyncAverage
from .by_chance import ByChance
from .clipped import Clipped
from .decentralized import Decentralized, LowPrecisionRing
from .demo import FrequencyMomentum
from .dgc import MomentumCorrection
from .ef21 import Differences
from .feedback import ErrorFeedback
from .gossip import Gossip
from .hierarchical import Hierarchical
from .in_engine import InEngine
from .levels import Levels, Natural, float8, geometric, uniform
from .local_momentum import LocalMomentum
from .local_sgd import LocalSGD
from .minmax import MinMax8
from .mirror_descent import AnyBatchMirrorDescent
from .onebit_adam import OneBitAdam
from .onebit_lamb import OneBitLamb
from .outer_steps import Nesterov, SlowMomentum
from .phases import Phases
from .powersgd import PowerSGD
from .programs import Gathered, TwoPhase
from .refit import FittedLevels
from .row_sparse import RowSparse
from .sign import Signs
from .synchronous import Bypass, Mean, Synchronous
from .topk import LargestEntries, RandomK
from .two_means import TwoMeans
from .zero_one_adam import ZeroOneAdam

__all__ = ["METHODS", "SMALL_BYTES", "Method", "usual"]

# Parameters below go as plain means, unless a text says otherwise.
SMALL_BYTES = 64 * 1024
_SMALL = SMALL_BYTES


@dataclass(frozen=True)
class Method:
    """A row of the table that `rabitrun --strategy help` prints.

    bits: what one rank sends for each coordinate in a step, for few ranks.  keeps: on each rank, in
    sizes of the parameter.  use: when it is worth a try, and what it needs.
    """

    build: Callable[..., Strategy]
    bits: str
    keeps: str
    use: str


def usual(exchange: Exchange, small: int, start: int = 0) -> Strategy:
    """In every step, with error feedback if it is biased, and small parameters by the plain mean."""
    if exchange.is_biased:
        exchange = ErrorFeedback(exchange)
    if start:
        exchange = Phases(start, exchange)
    return Synchronous(Bypass(exchange, small))


def _largest(ratio: float) -> Exchange:
    return InEngine(Compression.topk(ratio), Gathered(LargestEntries(ratio)))


def _signs(block: int) -> Exchange:
    return InEngine(Compression.sign(block, phases=2), TwoPhase(Signs(block), second_feedback=True))


def _eight_bits(block: int) -> Exchange:
    return InEngine(Compression.minmax8(block), TwoPhase(MinMax8(block)))


def _mean(codec: str = "") -> Strategy:
    if codec not in ("", "fp16", "bf16"):
        raise InvalidArgument(
            f"codec takes 'fp16' or 'bf16', in which sums travel, and not {codec!r}. What is encoded otherwise is a "
            "method by itself: 'qsgd', 'fp8', 'sign', ..."
        )
    return Synchronous(Mean(CompressionCodec(codec)))


def _powersgd(rank: int = 2, start: int = 0, small: int = _SMALL) -> Strategy:
    return usual(PowerSGD(rank), small, start)


def _topk(ratio: float = 0.01, start: int = 0, small: int = _SMALL) -> Strategy:
    return usual(_largest(ratio), small, start)


def _randomk(ratio: float = 0.1, scale: bool = False, small: int = _SMALL) -> Strategy:
    return usual(RandomK(ratio, scale), small)


def _dgc(
    ratio: float = 0.001,
    momentum: float = 0.9,
    clip: float = 0.0,
    ramp: int = 0,
    small: int = _SMALL,
) -> Strategy:
    inner = _largest(ratio)
    for number, denser in reversed(list(enumerate((0.25, 0.063, 0.015, 0.004), 1))):
        if ramp and denser > ratio:
            inner = Phases(number * ramp, inner, _largest(denser))
    correction = MomentumCorrection(inner, momentum, clip=clip)
    # Small parameters are complete in every step: their momentum is the plain one.
    rest = MomentumCorrection(Mean(), momentum, masks=False)
    return Synchronous(Bypass(correction, small, rest))


def _ef21(ratio: float = 0.01, small: int = _SMALL) -> Strategy:
    return usual(Differences(_largest(ratio)), small)


def _ef21_sgdm(ratio: float = 0.01, rate: float = 0.1, small: int = _SMALL) -> Strategy:
    # Small parameters are complete in every step, and have the same momentum.
    large = LocalMomentum(Differences(_largest(ratio)), rate)
    return Synchronous(Bypass(large, small, LocalMomentum(Mean(), rate)))


def _demo(momentum: float = 0.999, chunk: int = 64, count: int = 8, signs: bool = True) -> Strategy:
    return Synchronous(FrequencyMomentum(momentum, chunk, count, signs))


def _wangni(ratio: float = 0.05, small: int = _SMALL) -> Strategy:
    return usual(InEngine(Compression.by_chance(ratio), Gathered(ByChance(ratio))), small)


def _fitted(
    fit: Literal["best", "powers"],
) -> Callable[..., Strategy]:
    def build(
        bits: int = 3, block: int = 512, first: int = 1, every: int = 1000, small: int = _SMALL
    ) -> Strategy:
        return usual(FittedLevels(bits, block, first, every, fit), small)

    return build


def _onebit(block: int = 512, small: int = _SMALL) -> Strategy:
    otherwise = TwoPhase(TwoMeans(block), second_feedback=True)
    return usual(InEngine(Compression.two_means(block), otherwise), small)


def _fp8(block: int = 512, small: int = _SMALL) -> Strategy:
    return usual(InEngine(Compression.fp8(block), TwoPhase(Levels(float8(), block))), small)


def _gossip(graph: str = "ring", rounds: int = 1, every: int = 1) -> Strategy:
    return Gossip(graph, rounds, every)  # type: ignore[arg-type]  # it checks


def _dabmd(graph: str = "all", rounds: int = 1) -> Strategy:
    return AnyBatchMirrorDescent(graph=graph, rounds=rounds)  # type: ignore[arg-type]  # it checks


def _hierarchical(
    bits: int = 8, block: int = 512, island: int = 0, small: int = _SMALL
) -> Strategy:
    return usual(Hierarchical(_levels(bits, block), island), small)


def _sign(block: int = 4096, small: int = _SMALL) -> Strategy:
    return usual(_signs(block), small)


def _levels(bits: int, block: int) -> Exchange:
    codec = Compression.levels(bits, block, "uniform")
    return InEngine(codec, TwoPhase(Levels(uniform(bits), block)))


def _powers(bits: int, block: int) -> Exchange:
    codec = Compression.levels(bits, block, "exponential")
    return InEngine(codec, TwoPhase(Levels(geometric(bits), block)))


def _qsgd(bits: int = 8, block: int = 512, small: int = _SMALL) -> Strategy:
    return usual(_levels(bits, block), small)


def _nuqsgd(bits: int = 4, block: int = 512, small: int = _SMALL) -> Strategy:
    return usual(_powers(bits, block), small)


def _terngrad(clip: float = 2.5, block: int = 4096, small: int = _SMALL) -> Strategy:
    codec = Compression.levels(2, block, phases=1)
    exchange: Exchange = InEngine(codec, Gathered(Levels((0.0, 1.0), block)))
    return Synchronous(Bypass(Clipped(exchange, clip) if clip else exchange, small))


def _natural(small: int = _SMALL) -> Strategy:
    return usual(InEngine(Compression.natural(), TwoPhase(Natural())), small)


def _bytegrad(block: int = 4096, small: int = _SMALL) -> Strategy:
    return usual(_eight_bits(block), small)


def _rowsparse(small: int = _SMALL) -> Strategy:
    return usual(RowSparse(), small)


def _adasum() -> Strategy:
    return Synchronous(AdaptiveSum())


def _accordion(
    low: int = 4,
    high: int = 1,
    interval: int = 100,
    eta: float = 0.5,
    drop: float = 0.5,
    small: int = _SMALL,
) -> Strategy:
    return usual(Accordion(PowerSGD(low), PowerSGD(high), interval, eta, drop), small)


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
    exchange = _powers(bits, 512) if bits < 32 else None
    outer = Nesterov(lr, 0.9)
    return LocalSGD(every, outer, exchange=exchange, fragments=fragments, delay=delay, mix=mix)


def _sparseloco(every: int = 30, ratio: float = 0.02, decay: float = 0.95) -> Strategy:
    exchange = ErrorFeedback(_largest(ratio), decay)
    return LocalSGD(every, exchange=exchange)


def _onebit_adam(warmup: int = 1000, block: int = 4096, small: int = _SMALL) -> Strategy:
    exchange = ErrorFeedback(_signs(block))
    return OneBitAdam(Bypass(exchange, small), warmup)


def _onebit_lamb(warmup: int = 1000, block: int = 4096, small: int = _SMALL) -> Strategy:
    return OneBitLamb(Bypass(ErrorFeedback(_signs(block)), small), warmup)


def _zero_one_adam(
    start: int = 1000,
    refresh: int = 16,
    grow: int = 1000,
    every: int = 16,
    block: int = 4096,
    small: int = _SMALL,
) -> Strategy:
    exchange = Bypass(ErrorFeedback(_signs(block)), small)
    return ZeroOneAdam(exchange, start, refresh=refresh, grow=grow, every=every)


def _qadam(warmup: int = 100, block: int = 4096, small: int = _SMALL) -> Strategy:
    return OneBitAdam(Bypass(_eight_bits(block), small), warmup)


def _lowprecision(block: int = 4096, every: int = 1) -> Strategy:
    return LowPrecisionRing(MinMax8(block), every=every)


def _decentralized(peers: str = "all", every: int = 1) -> Strategy:
    return Decentralized(peers, every)  # type: ignore[arg-type]  # it checks


METHODS: dict[str, Method] = {
    "accordion": Method(_accordion, "as PowerSGD", "2", "PowerSGD where some phases bear little"),
    "adasum": Method(_adasum, "64", "0", "many ranks at the learning rate of one"),
    "alq": Method(
        _fitted("best"), "bits", "0", "unbiased, 2 to 4 bits, levels fitted to the gradients"
    ),
    "amq": Method(_fitted("powers"), "bits", "0", "as alq, with levels that are powers"),
    "anybatch": Method(AnyBatch, "32", "0", "ranks of unequal speed; set strategy.samples"),
    "async": Method(AsyncAverage, "up to 32", "0", "ranks of unequal speed; nobody waits"),
    "bytegrad": Method(_bytegrad, "8", "0", "slow networks, nothing to tune"),
    "dabmd": Method(_dabmd, "32·neighbours·rounds", "0", "ranks of unequal speed in any graph"),
    "decentralized": Method(_decentralized, "32", "0", "long delays; peers=shift-one"),
    "demo": Method(
        _demo, "48·count/chunk", "1", "below 1 Gbit/s; plain SGD, small learning rate"
    ),
    "dgc": Method(_dgc, "64·ratio", "2", "very slow networks, few ranks; plain SGD"),
    "diloco": Method(_diloco, "32/every", "2", "ranks far apart; long training"),
    "ef21": Method(_ef21, "64·ratio", "2", "ranks with different data"),
    "ef21-sgdm": Method(_ef21_sgdm, "64·ratio", "3", "EF21 with small batches; plain SGD"),
    "fp8": Method(_fp8, "8", "0", "unbiased; entries of very different size"),
    "gossip": Method(_gossip, "64·rounds/every", "0", "a ring of neighbours, nobody else waits"),
    "hierarchical": Method(
        _hierarchical,
        "32 in the island; bits/island beyond",
        "0",
        "fast hosts, slow links between them",
    ),
    "local": Method(_local, "32/every", "1", "slow networks; start= for post-local SGD"),
    "lowprecision": Method(_lowprecision, "16", "3", "rings of links below 1 Gbit/s"),
    "mean": Method(_mean, "32; codec=bf16: 16", "0", "the default"),
    "natural": Method(_natural, "9", "0", "unbiased, with little variance"),
    "nuqsgd": Method(_nuqsgd, "bits", "0", "unbiased; many small entries"),
    "onebit": Method(_onebit, "1", "1", "slow networks; as sign, with two means for each block"),
    "onebit-adam": Method(_onebit_adam, "1 after the warm-up", "3", "Adam; plain SGD as optimizer"),
    "onebit-lamb": Method(
        _onebit_lamb, "1 after the warm-up", "4", "LAMB, large batches; plain SGD as optimizer"
    ),
    "powersgd": Method(_powersgd, "32·rank·(n+m)/(n·m)", "1", "large matrices on slow networks"),
    "qadam": Method(_qadam, "8 after the warm-up", "2", "Adam; plain SGD as optimizer"),
    "qsgd": Method(_qsgd, "bits", "0", "unbiased; slow networks"),
    "randomk": Method(_randomk, "32·ratio", "1", "many ranks"),
    "rowsparse": Method(_rowsparse, "by the rows", "0", "embedding tables; exact"),
    "sign": Method(_sign, "1", "2", "slow networks, large models"),
    "slowmo": Method(_slowmo, "32/every", "2", "Local SGD that trains worse than the mean"),
    "sparseloco": Method(_sparseloco, "64·ratio/every", "2", "ranks very far apart"),
    "streaming-diloco": Method(_streaming, "32/every", "2", "DiLoCo with an even load"),
    "terngrad": Method(_terngrad, "2", "0", "unbiased; few ranks"),
    "topk": Method(_topk, "64·ratio", "1", "very slow networks, few ranks"),
    "wangni": Method(_wangni, "64·ratio", "0", "unbiased and sparse; slow networks, few ranks"),
    "zero-one-adam": Method(
        _zero_one_adam,
        "1/every in the end",
        "5",
        "Adam over very slow links; plain SGD as optimizer",
    ),
}
