"""Compressed allreduces between ranks against NumPy, bit by bit."""

from __future__ import annotations

import re

import numpy as np
import pytest

import rabit
from rabit import Compression
from rabit.errors import InvalidArgument, Mismatch
from rabit.testing import run_ranks

MASK = (1 << 64) - 1
FOR_ALL_RANKS = MASK
JOBS = [(2, "shm"), (4, "shm"), (2, "tcp")]


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


def random_bits(key: int, count: int) -> np.ndarray:
    x = np.uint32(key & 0xFFFFFFFF) + np.arange(count, dtype=np.uint32) * np.uint32(0x9E3779B9)
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> np.uint32(15)) ^ np.uint32(key >> 32)) * np.uint32(0x846CA68B)
    return x ^ (x >> np.uint32(16))


def levels(bits: int, is_uniform: bool):
    def round_trip(block: np.ndarray, key: int) -> np.ndarray:
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


def minmax8(block: np.ndarray, key: int) -> np.ndarray:
    least = block.min()
    span = block.max() - least
    if span == 0:
        return block.copy()
    code = np.minimum(
        np.floor((block - least) * (np.float32(255) / span) + np.float32(0.5)), np.float32(255)
    )
    return code * (span / np.float32(255)) + least


def fp8(block: np.ndarray, key: int) -> np.ndarray:
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


def natural(block: np.ndarray, key: int) -> np.ndarray:
    bits = np.abs(block).view(np.uint32) + (random_bits(key, block.size) >> np.uint32(9))
    value = (bits >> np.uint32(23) << np.uint32(23)).view(np.float32)
    return np.where(np.signbit(block), -value, value)


def sign(block: np.ndarray, key: int) -> np.ndarray:
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
    def round_trip(block: np.ndarray, key: int) -> np.ndarray:
        kept = np.argsort(-np.abs(block), kind="stable")[: max(1, round(ratio * block.size))]
        value = np.zeros_like(block)
        value[kept] = block[kept]
        return value

    return round_trip


def blockwise(round_trip, values: np.ndarray, block: int, key: int, rank: int) -> np.ndarray:
    parts = [
        round_trip(values[first : first + block], block_key(key, rank, first // block))
        for first in range(0, values.size, block)
    ]
    return np.concatenate(parts).astype(np.float32)


def expected(
    arrays: list[np.ndarray], oracle, block: int, is_two_phase: bool, key: int, left_of_sums=0.0
):
    """The sum, and what each rank has sent.  left_of_sums: what earlier sums have lost."""
    sent = [blockwise(oracle, each, block, key, rank) for rank, each in enumerate(arrays)]
    total = np.zeros_like(arrays[0])
    for each in sent:
        total += each
    if is_two_phase:
        total = blockwise(oracle, total + left_of_sums, block, key, FOR_ALL_RANKS) + np.float32(0)
    return total, sent


CODECS = {
    "8 bits": (Compression.levels(8, 512), levels(8, True), 512, True),
    "4 bits": (Compression.levels(4, 64), levels(4, True), 64, True),
    "4 bits, exponential": (Compression.levels(4, 512, "exponential"), levels(4, False), 512, True),
    "2 bits, gathered": (Compression.levels(2, 64, phases=1), levels(2, True), 64, False),
    "fp8": (Compression.fp8(512), fp8, 512, True),
    "natural": (Compression.natural(), natural, 512, True),
    "minmax8": (Compression.minmax8(512), minmax8, 512, True),
    "sign": (Compression.sign(512), sign, 512, False),
    "topk": (Compression.topk(0.03125, 512, exact=True), topk(0.03125), 512, False),
}
CUT = {**CODECS, "sign in two phases": (Compression.sign(512, phases=2),)}


def gradient(rank: int, count: int, step: int = 0) -> np.ndarray:
    return np.random.default_rng((7, rank, count, step)).standard_normal(count, np.float32)


@pytest.mark.parametrize(("size", "transport"), JOBS)
@pytest.mark.parametrize("codec", CODECS)
def test_a_codec_gives_the_bits_of_the_oracle(codec, size, transport):
    compression, oracle, block, is_two_phase = CODECS[codec]

    def on_rank(engine):
        for count in (1, 511, 5000):
            residual = np.zeros(count, np.float32)
            kept = [np.zeros(count, np.float32) for _ in range(size)]
            for step in range(3):
                arrays = [gradient(rank, count, step) + kept[rank] for rank in range(size)]
                key = tensor_key(step, f"g{count}")
                total, sent = expected(arrays, oracle, block, is_two_phase, key)
                kept = [mine - gone for mine, gone in zip(arrays, sent, strict=True)]
                found = rabit.allreduce(
                    gradient(engine.rank, count, step),
                    name=f"g{count}",
                    op=rabit.Sum,
                    compression=compression,
                    residual=residual,
                    seed=step,
                )
                np.testing.assert_array_equal(found, total)
                np.testing.assert_array_equal(residual, kept[engine.rank])
        mean = rabit.allreduce(gradient(engine.rank, 600), name="m", compression=compression)
        arrays = [gradient(rank, 600) for rank in range(size)]
        total, _ = expected(arrays, oracle, block, is_two_phase, tensor_key(0, "m"))
        np.testing.assert_array_equal(mean, total / np.float32(size))

    run_ranks(size, on_rank, transport=transport)


@pytest.mark.parametrize("codec", CUT)
def test_cuts_and_fusion_do_not_change_a_bit(codec):
    compression = CUT[codec][0]
    results = []

    def on_rank(engine):
        arrays = [gradient(engine.rank, 3000 + 100 * i) for i in range(4)]
        handles = [
            rabit.allreduce_async_(each, name=f"t{i}", compression=compression, seed=3)
            for i, each in enumerate(arrays)
        ]
        for handle in handles:
            handle.result()
        return np.concatenate(arrays)

    for sizes in (
        {"partition_bytes": 4 << 20},
        {"partition_bytes": 4096, "fusion_bytes": 0},
        {"partition_bytes": 5000, "fusion_bytes": 20000},
    ):
        results += run_ranks(2, on_rank, transport="shm", **sizes)
    for each in results:
        np.testing.assert_array_equal(each, results[0])


def test_a_sampled_topk_loses_nothing():
    def on_rank(engine):
        count, steps = 50_000, 5
        residual = np.zeros(count, np.float32)
        arrived = np.zeros(count)
        for step in range(steps):
            arrived += rabit.allreduce(
                gradient(engine.rank, count),
                name="x",
                op=rabit.Sum,
                compression=Compression.topk(0.01),
                residual=residual,
                seed=step,
            )
        held = rabit.allreduce(residual, name="held", op=rabit.Sum)
        total = sum(gradient(rank, count) for rank in range(2)).astype(np.float64) * steps
        np.testing.assert_allclose(arrived + held, total, atol=1e-4)
        assert np.count_nonzero(arrived) < 0.2 * count

    run_ranks(2, on_rank, transport="shm")


@pytest.mark.parametrize(("size", "transport"), JOBS)
def test_signs_in_two_phases_keep_what_their_sums_lose(size, transport):
    block, count = 64, 1000
    compression = Compression.sign(block, phases=2)

    def on_rank(engine):
        residual = np.zeros((2, count), np.float32)
        kept, left = [np.zeros(count, np.float32) for _ in range(size)], np.zeros(count, np.float32)
        for step in range(4):
            arrays = [gradient(rank, count, step) + kept[rank] for rank in range(size)]
            key = tensor_key(step, "g")
            total, sent = expected(arrays, sign, block, True, key, left)
            kept = [mine - gone for mine, gone in zip(arrays, sent, strict=True)]
            whole = np.zeros(count, np.float32)
            for each in sent:
                whole += each
            left = whole + left - total
            found = rabit.allreduce(
                gradient(engine.rank, count, step),
                name="g",
                op=rabit.Sum,
                compression=compression,
                residual=residual,
                seed=step,
            )
            np.testing.assert_array_equal(found, total)
            np.testing.assert_array_equal(residual[0], kept[engine.rank])
            is_mine = np.arange(count) // block % size == engine.rank
            np.testing.assert_array_equal(residual[1], np.where(is_mine, left, 0))

    run_ranks(size, on_rank, transport=transport)


def test_a_rank_sends_two_bits_of_an_element_however_many_ranks_there_are():
    count, size = 1 << 18, 4

    def on_rank(engine):
        data = gradient(engine.rank, count)
        sent = []
        for phases in (1, 2):
            rabit.barrier()
            before = bytes_sent(engine)
            rabit.allreduce(data, name=f"p{phases}", compression=Compression.sign(512, phases))
            sent.append(bytes_sent(engine) - before)
        return sent

    def bytes_sent(engine):
        return engine.statistics()["backend_details"]["builtin"]["transport"]["bytes_sent"]

    one = count / 8 * (1 + 32 / 512)
    for gathered, two_phases in run_ranks(size, on_rank, transport="tcp"):
        assert gathered == pytest.approx(one * (size - 1), rel=0.05)
        assert two_phases == pytest.approx(2 * one * (size - 1) / size, rel=0.05)


def test_torch_tensors_are_reduced_in_place_with_their_residual():
    torch = pytest.importorskip("torch")

    def on_rank(engine):
        mine = torch.from_numpy(gradient(engine.rank, 700).copy())
        residual = torch.zeros(700)
        rabit.allreduce_(
            mine, name="t", op=rabit.Sum, compression=Compression.sign(), residual=residual
        )
        arrays = [gradient(rank, 700) for rank in range(2)]
        total, sent = expected(arrays, sign, 512, False, tensor_key(0, "t"))
        np.testing.assert_array_equal(mine.numpy(), total)
        np.testing.assert_array_equal(residual.numpy(), arrays[engine.rank] - sent[engine.rank])

    run_ranks(2, on_rank, transport="shm")


def test_other_parameters_on_one_rank_are_a_mismatch_that_names_both():
    def on_rank(engine):
        compression = Compression.levels(bits=4 if engine.rank == 0 else 8)
        with pytest.raises(Mismatch) as error:
            rabit.allreduce(np.ones(8, np.float32), name="x", compression=compression)
        # The rank that comes second is named first.
        assert re.search(r"rank 0 (submitted )?codec levels:bits=4", str(error.value))
        assert re.search(r"rank 1 (submitted )?codec levels:bits=8", str(error.value))

    run_ranks(2, on_rank, transport="shm")


def test_what_a_codec_cannot_do_is_refused():
    def on_rank(engine):
        ones = np.ones(8, np.float32)
        for arguments, text in (
            ({"compression": Compression.levels(bits=9)}, "bits is '9'; it is an integer from 2"),
            ({"compression": Compression.topk(ratio=0)}, "a number above 0"),
            ({"compression": Compression.sign(), "op": rabit.Max}, "can only be summed"),
            ({"compression": Compression.fp16, "residual": ones.copy()}, "keeps no residual"),
            ({"residual": ones.copy()}, "a residual and no codec"),
            ({"compression": Compression.levels(), "seed": -1}, "the seed is -1"),
            ({"compression": Compression.levels(), "seed": "a"}, "the seed is 'a'. Pass a whole"),
            ({"compression": Compression.levels(), "seed": 1.5}, "the seed is 1.5. Pass a whole"),
            (
                {"compression": Compression.sign(), "residual": np.zeros(7, np.float32)},
                r"the residual is float32\[7\], the tensor float32\[8\]",
            ),
            (
                {"compression": Compression.sign(phases=2), "residual": np.zeros(8, np.float32)},
                r"the tensor float32\[8\]. Pass a residual of shape \[2, 8\], a row for the sums",
            ),
        ):
            with pytest.raises(InvalidArgument, match=text):
                rabit.allreduce(ones, name="x", **arguments)
        with pytest.raises(InvalidArgument, match="is for allreduce of float32, not allreduce of"):
            rabit.allreduce(np.ones(8), name="x", compression=Compression.sign())

    run_ranks(1, on_rank)


@pytest.mark.parametrize(
    "given",
    [
        (0, 1),  # too few
        (0, 0.1, 0.2, 0.3, 0.4, 1),
        (0.1, 0.2, 0.3, 1),
        (0, 0.2, 0.4, 2),
        (0, 0.5, 0.2, 1),
        (0, float("nan"), 0.4, 1),
        (0, "0.1", 0.4, 1),
    ],
)
def test_levels_that_the_engine_would_not_round_to_are_refused(given):
    with pytest.raises(
        InvalidArgument, match="levels are 4 numbers, the first 0, the last 1, none"
    ):
        Compression.levels(bits=3, levels=given)


def test_levels_of_one_s_own_take_bits_that_can_name_them():
    with pytest.raises(InvalidArgument, match=r"bits=2.: levels of one's own take 3 to 6 bits"):
        Compression.levels(bits=2, levels=(0, 1))


@pytest.mark.parametrize("codec", [Compression.topk, Compression.by_chance])
def test_a_ratio_that_is_no_number_is_refused(codec):
    with pytest.raises(InvalidArgument, match=r"ratio='a'.: ratio takes a number above 0"):
        codec(ratio="a")
