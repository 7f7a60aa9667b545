"""Compression: what travels in place of a tensor.

    rabit.allreduce(x, compression=rabit.Compression.fp16)

    residual = numpy.zeros_like(x)
    for step in range(steps):
        ...
        rabit.allreduce(x, name="x", compression=rabit.Compression.sign(), residual=residual)

fp16 and bf16 are summed as they travel.  The others are encoded block by block; what one block
becomes depends on that block alone, so results do not depend on how tensors are cut and joined.
A block with a value that is not finite arrives as values that are not finite.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real

from rabit.errors import InvalidArgument

__all__ = ["CODECS", "CodecRow", "Compression", "CompressionCodec"]


@dataclass(frozen=True)
class CodecRow:
    """What is said of one codec of the engine; docs/tables.py makes the table of the guide from it.

    calls: its calls, each with the bits that an element takes and what a call wants.
    of: the types that it encodes.
    is_biased: what it leaves out is left out for good, unless a residual keeps it.
    noisy: parts of a spec with which it may lose more than it is given, so that a residual would grow.
    """

    calls: tuple[tuple[str, str, str], ...]
    of: str = "float32"
    is_biased: bool = False
    noisy: tuple[str, ...] = ()


_CAST = "float32, float64; other types travel as they are"

# By the names of native/codec/codec_table.cc.
CODECS: dict[str, CodecRow] = {
    "fp16": CodecRow((("fp16", "16", ""),), _CAST),
    "bf16": CodecRow((("bf16", "16", ""),), _CAST),
    "levels": CodecRow(
        (
            (
                'levels(bits=4, block=512, levels="uniform", norm="max")',
                "`bits` + 32/`block`",
                "`seed`",
            ),
            (
                "levels(bits=3, levels=(0, 0.1, 0.4, 1))",
                "the same; levels of your own, with 3 to 6 bits",
                "`seed`",
            ),
            ("levels(bits=2, phases=1)", "2 + 32/`block`, of every rank", "`seed`"),
        ),
        noisy=("norm=l2", "bits=2,"),
    ),
    "fp8": CodecRow((("fp8(block=512)", "8 + 32/`block`", "`seed`"),)),
    "natural": CodecRow((("natural()", "9", "`seed`"),)),
    "minmax8": CodecRow((("minmax8(block=512)", "8 + 64/`block`", ""),)),
    "sign": CodecRow(
        (
            ("sign(block=512)", "1 + 32/`block`, of every rank", "`residual`"),
            (
                "sign(block=512, phases=2)",
                "1 + 32/`block`, there and back",
                "`residual` of two rows",
            ),
        ),
        is_biased=True,
    ),
    "means": CodecRow(
        (("two_means(block=512)", "1 + 64/`block`, there and back", "`residual` of two rows"),),
        is_biased=True,
    ),
    "chance": CodecRow(
        (("by_chance(ratio=0.05, block=1048576)", "64 · `ratio`, of every rank", "`seed`"),),
        noisy=("",),
    ),
    "topk": CodecRow(
        (
            (
                "topk(ratio=0.01, block=1048576, exact=False)",
                "64 · `ratio`, of every rank",
                "`residual`, `seed`",
            ),
        ),
        is_biased=True,
    ),
}


@dataclass(frozen=True)
class CompressionCodec:
    """A codec of the engine; compared and printed by its description.

    spec: the text for the native library; empty means no compression.
    residuals: how many a `residual` holds: 2 where sums are rounded too, and what that loses is kept.
    """

    spec: str
    residuals: int = field(default=1, kw_only=True)

    @property
    def is_biased(self) -> bool:
        """True if the expected result is not the sum of what was given: it wants a residual."""
        row = CODECS.get(self.spec.partition(":")[0])
        return row is not None and row.is_biased

    @property
    def is_noisy(self) -> bool:
        """True if it may lose more than it is given, so that a residual would grow without end."""
        row = CODECS.get(self.spec.partition(":")[0])
        return row is not None and any(part in self.spec for part in row.noisy)

    def __str__(self) -> str:
        return self.spec or "none"


class Compression:
    """The codecs of the engine.

    none: the tensor as it is.
    fp16: float32 and float64 travel as float16 (range 65504, 11 bits), which a sum, or a mean, has to fit.
    bf16: float32 and float64 travel as bfloat16 (range of float32, 8 bits).
    """

    none = CompressionCodec("")
    fp16 = CompressionCodec("fp16")
    bf16 = CompressionCodec("bf16")

    @staticmethod
    def levels(
        bits: int = 4,
        block: int = 512,
        levels: str | Sequence[float] = "uniform",
        norm: str = "max",
        phases: int = 2,
    ) -> CompressionCodec:
        """Rounds at random, without bias, to levels between 0 and each block's norm.

        float32.  bits: 2 to 8 for each element, one of them its sign.
        levels: "uniform" (QSGD), "exponential": 0 and powers of two (NUQSGD), or all of them: 2**(bits - 1)
            numbers that do not fall, the first 0, the last 1, with 3 to 6 bits; they are taken in parts of 65536 (ALQ).
        norm: "max" or "l2", which has the smaller code and the larger error.
        phases: 2: each rank adds some of the blocks up and rounds the sums once more.  1: every rank gets
        the codes of all ranks; for 2 bits, of which sums would lose too much (TernGrad).
        Wants a `seed`; with norm "l2" and few bits no residual, which would grow.
        Source: Alistarh et al., 2017; Ramezani-Kebrya et al., 2021; Faghri et al., 2020.
        """
        if not isinstance(levels, str):
            _check_levels(levels, bits)
            levels = "".join(f"{min(round(65536 * each), 65535):04x}" for each in levels[1:-1])
        return CompressionCodec(
            f"levels:bits={bits},block={block},levels={levels},norm={norm},phases={phases}"
        )

    @staticmethod
    def fp8(block: int = 512) -> CompressionCodec:
        """Rounds at random, without bias, to 8-bit floats with a scale for each block.

        float32.  4 bits of exponent and 3 of mantissa; the largest magnitude of a block becomes 448.
        Wants a `seed`.
        Source: Micikevicius et al., "FP8 Formats for Deep Learning", 2022 (E4M3).
        """
        return CompressionCodec(f"fp8:block={block}")

    @staticmethod
    def natural() -> CompressionCodec:
        """Rounds at random, without bias, to the power of two below or above; 9 bits, and no scale.

        float32.  Wants a `seed`.  Its variance is at most an eighth of the square.
        Source: Horváth et al., "Natural Compression for Distributed Deep Learning", 2019.
        """
        return CompressionCodec("natural")

    @staticmethod
    def sign(block: int = 512, phases: int = 1) -> CompressionCodec:
        """Sends the sign of each element and the mean magnitude of each block.

        float32.  Biased, so it wants a `residual`.
        phases: 1: every rank gets the bits of all ranks.  2: each rank adds some of the blocks up and
        sends the signs of the sums, so that a rank sends and gets 2 bits an element, however many ranks
        there are; the residual has a second row, [2, *shape], for what the sums lose.
        Source: Karimireddy et al., 2019; two phases: Tang et al., "DoubleSqueeze", 2019.
        """
        return CompressionCodec(f"sign:block={block},phases={phases}", residuals=phases)

    @staticmethod
    def two_means(block: int = 512) -> CompressionCodec:
        """Sends one bit of each element, and the means of both sides of zero of each block.

        float32.  Biased, so it wants a `residual`, with a second row, [2, *shape], for what the sums
        lose: each rank adds some of the blocks up and sends the sums in the same way.
        Source: Seide et al., 2014 (1-bit SGD).
        """
        return CompressionCodec(f"means:block={block}", residuals=2)

    @staticmethod
    def by_chance(ratio: float = 0.05, block: int = 1 << 20) -> CompressionCodec:
        """Sends elements with the chance p = min(λ·|x|, 1), as x/p, and where they are; without bias.

        float32.  ratio: of the elements of each block, on average; zeros are never sent.  Wants a
        `seed`, and no residual, which would grow.  Every rank gets the elements of all ranks.
        Source: Wangni et al., 2018 (greedy algorithm).
        """
        _check_ratio("by_chance", ratio)
        return CompressionCodec(f"chance:ratio={ratio:.9g},block={block}")

    @staticmethod
    def topk(ratio: float = 0.01, block: int = 1 << 20, exact: bool = False) -> CompressionCodec:
        """Sends the elements with the largest magnitudes, and where they are.

        float32.  ratio: of the elements of each block; zeros are never sent.  Unless `exact`, the
        threshold comes from a sample, and as few as 0.8 times as many may be sent, the largest found.
        Biased, so it wants a `residual`.  Every rank gets the elements of all ranks.
        Source: Aji and Heafield, 2017; Lin et al., 2018.
        """
        _check_ratio("topk", ratio)
        count = "exact" if exact else "sampled"
        return CompressionCodec(f"topk:ratio={ratio:.9g},block={block},count={count}")

    @staticmethod
    def minmax8(block: int = 512) -> CompressionCodec:
        """Sends 8 bits for each element, between the least and the largest of its block.

        float32.  Rounds to the nearest, so it needs no seed.
        """
        return CompressionCodec(f"minmax8:block={block}")


def _check_levels(levels: Sequence[float], bits: int) -> None:
    """Raises InvalidArgument for what the engine cannot see: it gets those between the first and the last."""
    if not isinstance(bits, Integral) or not 3 <= bits <= 6:
        raise InvalidArgument(
            f"Compression.levels(bits={bits!r}): levels of one's own take 3 to 6 bits."
        )
    count = 2 ** (int(bits) - 1)
    are_right = len(levels) == count and all(isinstance(each, Real) for each in levels)
    are_right = are_right and levels[0] == 0 and levels[-1] == 1
    if not are_right or not all(a <= b for a, b in itertools.pairwise(levels)):
        raise InvalidArgument(
            f"Compression.levels(bits={bits}, levels={levels!r}): levels are {count} numbers, the first 0, the last 1, "
            "none below the one before."
        )


def _check_ratio(codec: str, ratio: float) -> None:
    if not isinstance(ratio, Real):
        raise InvalidArgument(
            f"Compression.{codec}(ratio={ratio!r}): ratio takes a number above 0 and up to 1."
        )
