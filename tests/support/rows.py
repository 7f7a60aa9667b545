"""What the suites must know of each gradient method and of each codec of the engine: a row for each, with its oracle.

A method without a row, and a row without an oracle, is red; so is a codec of native/codec/codec_table.cc without one:
tests/unit/strategies/test_rows.py.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from rabit import Compression, CompressionCodec
from rabit.strategies.catalog import METHODS

from . import method_oracles as oracles
from .method_bytes import (
    ISLAND,
    PAIR,
    SCALE,
    SIGNS,
    Account,
    added,
    factors,
    gathered,
    islands,
    per,
    to_peers,
)
from .method_oracles import Oracle, descends, fed_back, in_the_mean, two_phases

__all__ = ["CODECS", "ROWS", "Codec", "Row", "text_of"]


Array = np.ndarray
RoundTrip = Callable[[Array, int], Array]

# --- codecs of the engine: what arrives of one block of float32, bit by bit -------------------------

MASK = (1 << 64) - 1


def mix(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def tensor_key(seed: int, name: str) -> int:
    value = 0xCBF29CE484222325
    for byte in name.encode():
        value = ((value ^ byte) * 0x100000001B3) & MASK
    return mix(mix(seed) ^ value)


def block_key(key: int, rank: int, block: int) -> int:
    return mix((mix(key ^ mix(rank)) + block) & MASK)


def random_bits(key: int, count: int) -> Array:
    x = np.uint32(key & 0xFFFFFFFF) + np.arange(count, dtype=np.uint32) * np.uint32(0x9E3779B9)
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> np.uint32(15)) ^ np.uint32(key >> 32)) * np.uint32(0x846CA68B)
    return x ^ (x >> np.uint32(16))


def levels(bits: int, is_uniform: bool):
    def round_trip(block: Array, key: int) -> Array:
        top = (1 << (bits - 1)) - 1
        magnitude = np.abs(block)
        scale = magnitude.max()
        random = random_bits(key, block.size)
        uniform = (random >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)
        if is_uniform:
            place = magnitude * (np.float32(top) / scale)
            below = np.floor(place)
            level = np.minimum(below + (uniform < place - below), np.float32(top))
            value = level.astype(np.float32) * (scale / np.float32(top))
        else:
            place = magnitude * (np.float32(1) / scale)
            least = np.float32(2.0 ** (1 - top))
            small = np.where(uniform < place * np.float32(2.0 ** (top - 1)), least, 0)
            mantissa, exponent = np.frexp(place)
            carry = (mantissa * 2 - 1) + (random >> np.uint32(9)).astype(np.float32) * 2.0**-23
            large = np.minimum(np.ldexp(np.float32(1), exponent - 1 + (carry >= 1)), 1)
            value = np.where(place < least, small, large).astype(np.float32) * scale
        return np.where(np.signbit(block), -value, value)

    return round_trip


def minmax8(block: Array, key: int) -> Array:
    least = block.min()
    span = block.max() - least
    if span == 0:
        return block.copy()
    code = np.minimum(
        np.floor((block - least) * (np.float32(255) / span) + np.float32(0.5)), np.float32(255)
    )
    return code * (span / np.float32(255)) + least


def fp8(block: Array, key: int) -> Array:
    scale = np.abs(block).max()
    place = np.abs(block) * (np.float32(448) / scale)
    random = random_bits(key, block.size)
    exponent = np.maximum(np.frexp(place)[1] - 1, -6)
    steps = np.ldexp(place, 3 - exponent)  # of the mantissa
    below = np.floor(steps)
    small = (random >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24) < steps - below
    large = steps - below + (random >> np.uint32(12)).astype(np.float32) * np.float32(2.0**-20) >= 1
    level = np.ldexp(below + np.where(place < 2.0**-6, small, large), exponent - 3)
    value = np.minimum(level, 448).astype(np.float32) * (scale / np.float32(448))
    return np.where(np.signbit(block), -value, value)


def natural(block: Array, key: int) -> Array:
    bits = np.abs(block).view(np.uint32) + (random_bits(key, block.size) >> np.uint32(9))
    value = (bits >> np.uint32(23) << np.uint32(23)).view(np.float32)
    return np.where(np.signbit(block), -value, value)


def sign(block: Array, key: int) -> Array:
    padded = np.zeros(-(-block.size // 16) * 16, np.float32)
    padded[: block.size] = np.abs(block)
    lanes = np.zeros(16, np.float32)
    for row in padded.reshape(-1, 16):
        lanes += row
    for width in (8, 4, 2, 1):
        lanes[:width] += lanes[width : 2 * width]
    scale = lanes[0] / np.float32(block.size)
    return np.where(np.signbit(block), -scale, scale)


def topk(ratio: float):
    def round_trip(block: Array, key: int) -> Array:
        kept = np.argsort(-np.abs(block), kind="stable")[: max(1, round(ratio * block.size))]
        value = np.zeros_like(block)
        value[kept] = block[kept]
        return value

    return round_trip


def two_means(block: Array, key: int) -> Array:
    is_negative = np.signbit(block)
    found = np.zeros_like(block)
    for side in (is_negative, ~is_negative):
        if side.any():
            found[side] = np.float32(block[side].astype(np.float64).mean())
    return found


def probabilities(size: Array, ratio: float) -> Array:
    """min(λ·|x|, 1) with a mean of `ratio`, as two corrections of λ have it (Wangni et al., 2018)."""
    wanted = ratio * size.size
    chance = size * (wanted / size.sum())
    for _ in range(2):
        sure = chance >= 1
        factor = (wanted - sure.sum()) / chance[~sure].sum() if not sure.all() else 1.0
        if factor <= 1:
            break
        chance = np.minimum(chance, 1) * factor
    return np.minimum(chance, 1)


def by_chance(ratio: float) -> RoundTrip:
    def round_trip(block: Array, key: int) -> Array:
        chance = probabilities(np.abs(block).astype(np.float64), ratio)
        uniform = (random_bits(key, block.size) >> np.uint32(8)) * 2.0**-24
        return np.where(uniform < chance, block / chance, 0).astype(np.float32)

    return round_trip


@dataclass(frozen=True)
class Codec:
    """oracle: what a block of so many elements becomes, with a key for random numbers.

    phases: 2 if sums are encoded once more.  tolerance: of each element, where the oracle adds up in another order.
    """

    compression: CompressionCodec
    oracle: RoundTrip
    block: int
    phases: int = 2
    tolerance: float = 0.0


CODECS: dict[str, Codec] = {
    "8 bits": Codec(Compression.levels(8, 512), levels(8, True), 512),
    "4 bits": Codec(Compression.levels(4, 64), levels(4, True), 64),
    "4 bits, exponential": Codec(Compression.levels(4, 512, "exponential"), levels(4, False), 512),
    "2 bits, gathered": Codec(Compression.levels(2, 64, phases=1), levels(2, True), 64, phases=1),
    "fp8": Codec(Compression.fp8(512), fp8, 512),
    "natural": Codec(Compression.natural(), natural, 512),
    "minmax8": Codec(Compression.minmax8(512), minmax8, 512),
    "sign": Codec(Compression.sign(512), sign, 512, phases=1),
    "sign in two phases": Codec(Compression.sign(512, phases=2), sign, 512),
    "two means": Codec(Compression.two_means(512), two_means, 512, tolerance=2e-6),
    "by chance": Codec(
        Compression.by_chance(0.25, 512), by_chance(0.25), 512, phases=1, tolerance=1e-4
    ),
    "topk": Codec(Compression.topk(0.03125, 512, exact=True), topk(0.03125), 512, phases=1),
}


# --- methods ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """oracle: what it is to do.  account: what it puts on the wire.

    rounding: the cases of tests/conformance/test_unbiased.py that are its codecs, or why it has none.
    short: arguments with which a few steps of small parameters show all that it does.
    learns: arguments and learning rate with which some hundred steps of a small layer come to what the mean does.
    """

    oracle: Oracle
    account: Account
    rounding: tuple[str, ...] | str
    short: str = ""
    learns: tuple[str, float] = ("", 0.5)


EXACT, BIASED, NEAREST = "exact", "biased, with a residual", "rounds to the nearest"
BY_ORACLE = "at random, as its codec in CODECS, whose bits are those of an oracle"
QSGD = ("qsgd, 2 bits", "qsgd, 3 bits", "qsgd, 8 bits", "qsgd in the engine")
NUQSGD = ("nuqsgd", "nuqsgd in the engine")
FITTED = ("alq and amq",)


EIGHT_BITS = oracles.by_blocks(minmax8, 32)
SIGNS_BOTH_WAYS = fed_back(two_phases(oracles.by_blocks(sign, 32), keeps=True))


def nearest_of_256(x: Array) -> Array:
    step = (x.max() - x.min()) / 255
    return x.min() + step * np.rint((x - x.min()) / step)


def moves(words: Callable[[int], float], every: int = 4, more: str = "") -> Account:
    return Account(per(every, words), f"every={every}{more}", every=every)


ROWS: dict[str, Row] = {
    # It begins with the milder of its two.
    "accordion": Row(
        Oracle(
            descends(fed_back(oracles.accordion(oracles.low_rank(4), oracles.low_rank(1), 2))),
            "interval=2",
        ),
        Account(factors(4)),
        BIASED,
        "interval=2",
    ),
    "adasum": Row(Oracle(descends(oracles.adaptive_sum)), Account(added(32)), EXACT),
    "alq": Row(
        in_the_mean(oracles.mean, "every=20"),
        Account(added(3 + SCALE), "every=1000", after=2),
        FITTED,
        "every=2",
    ),
    "amq": Row(
        in_the_mean(oracles.mean, "every=20"),
        Account(added(3 + SCALE), "every=1000", after=2),
        FITTED,
        "every=2",
    ),
    "anybatch": Row(Oracle(oracles.by_samples), Account(added(32)), EXACT),
    "async": Row(Oracle(descends(oracles.mean), of_mean=True), Account(added(32)), EXACT),
    "bytegrad": Row(
        Oracle(descends(two_phases(EIGHT_BITS)), "block=32"), Account(added(8 + PAIR)), NEAREST
    ),
    "dabmd": Row(
        Oracle(oracles.averages(oracles.RING, samples=True), "graph=ring"),
        Account(to_peers(2), "graph=ring"),
        EXACT,
    ),
    "decentralized": Row(
        Oracle(oracles.averages(oracles.ALL, late=True)),
        Account(to_peers(1), "peers=shift-one", after=1),
        EXACT,
    ),
    "demo": Row(
        Oracle(descends(oracles.frequencies(0.9, 24, 4)), "momentum=0.9,chunk=24,count=4"),
        Account(gathered(48 * 8 / 64)),
        BIASED,
        "chunk=8,count=2",
        learns=("count=16,momentum=0.9", 0.02),
    ),
    "dgc": Row(
        Oracle(
            descends(oracles.momentum_correction(oracles.gathered(oracles.largest(0.1)), 0.9)),
            "ratio=0.1",
        ),
        Account(gathered(64 * 0.01), "ratio=0.01"),
        BIASED,
        "ratio=0.1,ramp=1",
        learns=("ratio=0.2,momentum=0.5", 0.25),
    ),
    "diloco": Row(
        Oracle(oracles.alone(2, oracles.nesterov(0.7, 0.9)), "every=2"),
        moves(added(32)),
        EXACT,
        "every=2",
        learns=("every=4,lr=0.5,momentum=0.5", 0.5),
    ),
    "ef21": Row(
        Oracle(descends(oracles.differences(oracles.gathered(oracles.largest(0.1)))), "ratio=0.1"),
        Account(gathered(64 * 0.01)),
        BIASED,
        "ratio=0.1",
        learns=("ratio=0.2", 0.5),
    ),
    "ef21-sgdm": Row(
        Oracle(
            descends(
                oracles.local_momentum(
                    oracles.differences(oracles.gathered(oracles.largest(0.1))), 0.2
                )
            ),
            "ratio=0.1,rate=0.2",
        ),
        Account(gathered(64 * 0.01)),
        BIASED,
        "ratio=0.1",
        learns=("ratio=0.2,rate=0.3", 0.5),
    ),
    "fp8": Row(in_the_mean(oracles.mean), Account(added(8 + SCALE)), ("fp8 in the engine",)),
    "gossip": Row(Oracle(oracles.averages(oracles.RING)), Account(to_peers(2)), EXACT),
    "hierarchical": Row(
        in_the_mean(oracles.mean, "island=2,bits=4"),
        Account(islands(8 + SCALE), f"island={ISLAND}"),
        ("qsgd, 8 bits", "qsgd in the engine"),
        "island=1",
        learns=("island=1", 0.5),
    ),
    "local": Row(Oracle(oracles.alone(2), "every=2"), moves(added(32)), EXACT, "every=2"),
    "lowprecision": Row(
        Oracle(oracles.ring_of_differences(nearest_of_256)), Account(to_peers(2, 8 + PAIR)), NEAREST
    ),
    "mean": Row(Oracle(descends(oracles.mean)), Account(added(32)), EXACT),
    "natural": Row(in_the_mean(oracles.mean), Account(added(9)), ("natural in the engine",)),
    "nuqsgd": Row(in_the_mean(oracles.mean), Account(added(4 + SCALE)), NUQSGD),
    "onebit": Row(
        Oracle(
            descends(fed_back(two_phases(oracles.by_blocks(two_means, 32), keeps=True))), "block=32"
        ),
        Account(added(1 + 64 / 512)),
        BIASED,
        learns=("block=32", 0.25),
    ),
    "onebit-adam": Row(
        Oracle(oracles.adam(SIGNS_BOTH_WAYS, 3), "warmup=3,block=32"),
        Account(added(SIGNS), "warmup=1", after=1),
        BIASED,
        "warmup=2",
        learns=("warmup=40,block=32", 0.03),
    ),
    "onebit-lamb": Row(
        Oracle(oracles.lamb(SIGNS_BOTH_WAYS, 3), "warmup=3,block=32"),
        Account(added(SIGNS), "warmup=1", after=1),
        BIASED,
        "warmup=2",
        learns=("warmup=80,block=32", 0.05),
    ),
    "powersgd": Row(Oracle(descends(fed_back(oracles.low_rank(2)))), Account(factors(2)), BIASED),
    "qadam": Row(
        Oracle(oracles.adam(two_phases(EIGHT_BITS), 3), "warmup=3,block=32"),
        Account(added(8 + PAIR), "warmup=1", after=1),
        NEAREST,
        "warmup=2",
        learns=("warmup=40", 0.03),
    ),
    "qsgd": Row(in_the_mean(oracles.mean, "bits=4"), Account(added(8 + SCALE)), QSGD),
    # What is bad waits in the residual until it is chosen.
    "randomk": Row(
        in_the_mean(oracles.mean, "ratio=0.5"), Account(added(32 * 0.1)), ("randomk",), "ratio=0.5"
    ),
    # A quarter of the rows are not zero.
    "rowsparse": Row(
        Oracle(descends(oracles.mean), few_rows=True), Account(gathered(32 / 4)), EXACT
    ),
    "sign": Row(
        Oracle(descends(SIGNS_BOTH_WAYS), "block=32"),
        Account(added(SIGNS)),
        BIASED,
        learns=("block=32", 0.25),
    ),
    "slowmo": Row(
        Oracle(oracles.alone(2, oracles.slow_momentum(1.0, 0.5)), "every=2"),
        moves(added(32)),
        EXACT,
        "every=2",
        learns=("every=4", 0.25),
    ),
    "sparseloco": Row(
        Oracle(
            oracles.alone(2, exchange=fed_back(oracles.gathered(oracles.largest(0.1)), 0.95)),
            "every=2,ratio=0.1",
        ),
        moves(gathered(64 * 0.02)),
        BIASED,
        "every=2,ratio=0.1",
        learns=("every=4,ratio=0.3", 0.5),
    ),
    "streaming-diloco": Row(
        Oracle(
            oracles.alone(4, oracles.nesterov(0.7, 0.9), meets=2, delay=1, mix=0.5),
            "every=4,fragments=2,delay=1",
        ),
        Account(per(4, added(32)), "every=4,delay=0", after=4, every=4),
        NUQSGD,
        "every=4,fragments=2,delay=1",
        learns=("every=8,delay=2", 0.5),
    ),
    "terngrad": Row(
        in_the_mean(oracles.clipped(oracles.mean, 2.5)),
        Account(gathered(2 + 32 / 4096)),
        ("terngrad", "terngrad in the engine"),
        learns=("block=64", 0.25),
    ),
    "topk": Row(
        Oracle(descends(fed_back(oracles.gathered(oracles.largest(0.1)))), "ratio=0.1"),
        Account(gathered(64 * 0.01)),
        BIASED,
        "ratio=0.1",
        learns=("ratio=0.2", 0.5),
    ),
    # Of one entry, so many steps send it.
    "wangni": Row(
        in_the_mean(oracles.mean, "ratio=0.3"),
        Account(gathered(64 * 0.05)),
        ("wangni in the engine",),
        "ratio=0.5",
        learns=("ratio=0.3", 0.25),
    ),
    "zero-one-adam": Row(
        Oracle(
            oracles.zero_one_adam(SIGNS_BOTH_WAYS, {0, 1, 3}, {0, 1, 2, 3, 4, 5, 7, 9}),
            "start=4,refresh=1,grow=2,every=2,block=32",
        ),
        Account(per(4, added(SIGNS)), "start=1,refresh=1,grow=1,every=4", after=16, every=4),
        BIASED,
        "start=2,refresh=1,grow=2,every=2",
        learns=("start=60,grow=30,every=4,block=8", 0.02),
    ),
}


def text_of(name: str, arguments: str | None = None) -> str:
    """A text of the method that encodes small parameters too; arguments: None: those of its row that are `short`."""
    parts = [ROWS[name].short if arguments is None else arguments]
    if "small" in inspect.signature(METHODS[name].build).parameters:
        parts.append("small=0")
    return ":".join(filter(None, [name, ",".join(filter(None, parts))]))
