"""Methods by name: "powersgd:rank=2"."""

from __future__ import annotations

import ast
import difflib
import inspect
from collections.abc import Callable

from rabit.compression import CompressionCodec
from rabit.errors import InvalidArgument
from rabit.training.strategy import Exchange, Strategy

from .accordion import Accordion
from .adasum import AdaptiveSum
from .any_batch import AnyBatch
from .async_average import AsyncAverage
from .decentralized import Decentralized, LowPrecisionRing
from .dgc import MomentumCorrection
from .ef21 import Differences
from .feedback import ErrorFeedback
from .levels import Levels, Natural, geometric, uniform
from .local_sgd import LocalSGD
from .minmax import MinMax8
from .onebit_adam import OneBitAdam
from .outer_steps import Nesterov, SlowMomentum
from .phases import Phases
from .powersgd import PowerSGD
from .programs import Gathered, TwoPhase
from .row_sparse import RowSparse
from .sign import Signs
from .synchronous import Bypass, Mean, Synchronous
from .topk import LargestEntries, RandomK

__all__ = ["as_strategy", "available", "make"]

_SMALL = 64 * 1024


def as_strategy(method: Strategy | Exchange | str) -> Strategy:
    """A strategy; a text is looked up, and of an exchange a strategy is made as its paper has it.

    That is: in every step, with error feedback if it is biased, and small parameters by the plain mean.
    `Synchronous(exchange)` takes an exchange as it is.
    """
    if isinstance(method, Strategy):
        return method
    if isinstance(method, str):
        return make(method)
    if not isinstance(method, Exchange):
        raise InvalidArgument(
            f"strategy is {method!r}; use a rabit.strategies.Strategy or Exchange, or a text such as "
            f"'powersgd:rank=2' (known: {', '.join(available())})"
        )
    return _usual(method, _SMALL)


def _usual(exchange: Exchange, small: int, start: int = 0) -> Strategy:
    if exchange.is_biased:
        exchange = ErrorFeedback(exchange)
    if start:
        exchange = Phases(start, exchange)
    return Synchronous(Bypass(exchange, small))


def _mean(codec: str = "") -> Strategy:
    return Synchronous(Mean(CompressionCodec(codec)))


def _powersgd(rank: int = 2, start: int = 0, small: int = _SMALL) -> Strategy:
    return _usual(PowerSGD(rank), small, start)


def _topk(ratio: float = 0.01, start: int = 0, small: int = _SMALL) -> Strategy:
    return _usual(Gathered(LargestEntries(ratio)), small, start)


def _randomk(ratio: float = 0.1, scale: bool = False, small: int = _SMALL) -> Strategy:
    return _usual(RandomK(ratio, scale), small)


def _dgc(
    ratio: float = 0.001, momentum: float = 0.9, clip: float = 0.0, small: int = _SMALL
) -> Strategy:
    correction = MomentumCorrection(Gathered(LargestEntries(ratio)), momentum, clip=clip)
    # Small parameters are complete in every step: their momentum is the plain one.
    rest = MomentumCorrection(Mean(), momentum, masks=False)
    return Synchronous(Bypass(correction, small, rest))


def _ef21(ratio: float = 0.01, small: int = _SMALL) -> Strategy:
    return _usual(Differences(Gathered(LargestEntries(ratio))), small)


def _sign(block: int = 4096, small: int = _SMALL) -> Strategy:
    return _usual(TwoPhase(Signs(block), second_feedback=True), small)


def _qsgd(bits: int = 8, block: int = 512, small: int = _SMALL) -> Strategy:
    return _usual(TwoPhase(Levels(uniform(bits), block)), small)


def _nuqsgd(bits: int = 4, block: int = 512, small: int = _SMALL) -> Strategy:
    return _usual(TwoPhase(Levels(geometric(bits), block)), small)


def _terngrad(clip: float = 2.5, block: int = 4096, small: int = _SMALL) -> Strategy:
    return Synchronous(Bypass(Gathered(Levels((0.0, 1.0), block, clip=clip)), small))


def _natural(small: int = _SMALL) -> Strategy:
    return _usual(TwoPhase(Natural()), small)


def _bytegrad(block: int = 4096, small: int = _SMALL) -> Strategy:
    return _usual(TwoPhase(MinMax8(block)), small)


def _rowsparse(small: int = _SMALL) -> Strategy:
    return _usual(RowSparse(), small)


def _adasum() -> Strategy:
    return Synchronous(AdaptiveSum())


def _accordion(
    low: int = 4, high: int = 1, interval: int = 100, eta: float = 0.5, small: int = _SMALL
) -> Strategy:
    return _usual(Accordion(PowerSGD(low), PowerSGD(high), interval, eta), small)


def _local(every: int = 8, start: int = 0) -> Strategy:
    return LocalSGD(every, start=start)


def _slowmo(every: int = 12, alpha: float = 1.0, beta: float = 0.5, start: int = 0) -> Strategy:
    return LocalSGD(every, SlowMomentum(alpha, beta), start=start)


def _diloco(every: int = 500, lr: float = 0.7, momentum: float = 0.9) -> Strategy:
    return LocalSGD(every, Nesterov(lr, momentum))


def _streaming(
    every: int = 100, fragments: int = 4, delay: int = 5, mix: float = 0.5, lr: float = 0.7
) -> Strategy:
    return LocalSGD(every, Nesterov(lr, 0.9), fragments=fragments, delay=delay, mix=mix)


def _sparseloco(every: int = 30, ratio: float = 0.02, decay: float = 0.95) -> Strategy:
    exchange = ErrorFeedback(Gathered(LargestEntries(ratio)), decay)
    return LocalSGD(every, exchange=exchange)


def _onebit_adam(warmup: int = 1000, block: int = 4096, small: int = _SMALL) -> Strategy:
    exchange = ErrorFeedback(TwoPhase(Signs(block), second_feedback=True))
    return OneBitAdam(Bypass(exchange, small), warmup)


def _qadam(warmup: int = 100, block: int = 4096, small: int = _SMALL) -> Strategy:
    return OneBitAdam(Bypass(TwoPhase(MinMax8(block)), small), warmup)


def _lowprecision(block: int = 4096) -> Strategy:
    return LowPrecisionRing(MinMax8(block))


def _decentralized(peers: str = "all", every: int = 1) -> Strategy:
    return Decentralized(peers, every)  # type: ignore[arg-type]  # it checks


_METHODS: dict[str, Callable[..., Strategy]] = {
    "accordion": _accordion,
    "adasum": _adasum,
    "anybatch": AnyBatch,
    "async": AsyncAverage,
    "bytegrad": _bytegrad,
    "decentralized": _decentralized,
    "dgc": _dgc,
    "diloco": _diloco,
    "ef21": _ef21,
    "local": _local,
    "lowprecision": _lowprecision,
    "mean": _mean,
    "natural": _natural,
    "nuqsgd": _nuqsgd,
    "onebit-adam": _onebit_adam,
    "powersgd": _powersgd,
    "qadam": _qadam,
    "qsgd": _qsgd,
    "randomk": _randomk,
    "rowsparse": _rowsparse,
    "sign": _sign,
    "slowmo": _slowmo,
    "sparseloco": _sparseloco,
    "streaming-diloco": _streaming,
    "terngrad": _terngrad,
    "topk": _topk,
}


def available() -> list[str]:
    """The names of the methods that `make` knows."""
    return sorted(_METHODS)


def make(spec: str) -> Strategy:
    """The strategy of a text: "name" or "name:key=value,key=value", with the method's arguments."""
    name, _, rest = spec.partition(":")
    builder = _METHODS.get(name)
    if builder is None:
        near = difflib.get_close_matches(name, _METHODS, 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise InvalidArgument(
            f"strategy {spec!r}: there is no method {name!r}; {hint}known: {', '.join(available())}"
        )
    known = inspect.signature(builder).parameters
    given = {}
    for part in filter(None, rest.split(",")):
        key, is_pair, text = part.partition("=")
        if key not in known or not is_pair:
            takes = ", ".join(f"{each.name}={each.default}" for each in known.values())
            raise InvalidArgument(
                f"strategy {spec!r}: {part!r} is not an argument of {name!r}; it takes "
                f"{takes or 'none'}"
            )
        given[key] = _value(spec, key, text, known[key].default)
    return builder(**given)


def _value(spec: str, key: str, text: str, like: object) -> object:
    """`text` as a value of the type of `like`."""
    if isinstance(like, str):
        return text
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        value = None
    if isinstance(like, float) and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if type(value) is not type(like):
        raise InvalidArgument(
            f"strategy {spec!r}: {key} is {text!r}, where {type(like).__name__} such as {like!r} is "
            "expected"
        )
    return value
