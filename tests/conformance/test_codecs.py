"""Compressed allreduces between ranks against NumPy, bit by bit."""

from __future__ import annotations

import re

import numpy as np
import pytest
from support.rows import CODECS, MASK, Codec, block_key, sign, tensor_key

import rabit
from rabit import Compression
from rabit.errors import InvalidArgument, Mismatch
from rabit.testing import run_ranks

JOBS = [(2, "shm"), (4, "shm"), (2, "tcp")]


FOR_ALL_RANKS = MASK


def blockwise(round_trip, values: np.ndarray, block: int, key: int, rank: int) -> np.ndarray:
    parts = [
        round_trip(values[first : first + block], block_key(key, rank, first // block))
        for first in range(0, values.size, block)
    ]
    return np.concatenate(parts).astype(np.float32)


def expected(arrays: list[np.ndarray], row: Codec, key: int, left_of_sums=0.0):
    """The sum, and what each rank has sent.  left_of_sums: what earlier sums have lost."""
    sent = [blockwise(row.oracle, each, row.block, key, rank) for rank, each in enumerate(arrays)]
    total = np.zeros_like(arrays[0])
    for each in sent:
        total += each
    if row.phases == 2:
        again = blockwise(row.oracle, total + left_of_sums, row.block, key, FOR_ALL_RANKS)
        total = again + np.float32(0)
    return total, sent


def gradient(rank: int, count: int, step: int = 0) -> np.ndarray:
    return np.random.default_rng((7, rank, count, step)).standard_normal(count, np.float32)


@pytest.mark.parametrize(("size", "transport"), JOBS)
@pytest.mark.parametrize("codec", CODECS)
def test_a_codec_gives_the_bits_of_the_oracle(codec, size, transport):
    row = CODECS[codec]
    near = {"rtol": 0, "atol": row.tolerance}

    def on_rank(engine):
        for count in (1, 511, 5000):
            rows = row.compression.residuals
            residual = np.zeros((rows, count) if rows == 2 else count, np.float32)
            kept = [np.zeros(count, np.float32) for _ in range(size)]
            for step in range(3):
                left = 0.0
                if rows == 2:  # What the sums lost, each block with its rank.
                    left = rabit.allreduce(residual[1], name="left", op=rabit.Sum)
                arrays = [gradient(rank, count, step) + kept[rank] for rank in range(size)]
                key = tensor_key(step, f"g{count}")
                total, sent = expected(arrays, row, key, left)
                kept = [mine - gone for mine, gone in zip(arrays, sent, strict=True)]
                found = rabit.allreduce(
                    gradient(engine.rank, count, step),
                    name=f"g{count}",
                    op=rabit.Sum,
                    compression=row.compression,
                    residual=residual,
                    seed=step,
                )
                np.testing.assert_allclose(found, total, **near)
                mine = residual[0] if rows == 2 else residual
                np.testing.assert_allclose(mine, kept[engine.rank], **near)
        mean = rabit.allreduce(gradient(engine.rank, 600), name="m", compression=row.compression)
        arrays = [gradient(rank, 600) for rank in range(size)]
        total, _ = expected(arrays, row, tensor_key(0, "m"))
        np.testing.assert_allclose(mean, total / np.float32(size), **near)

    run_ranks(size, on_rank, transport=transport)


@pytest.mark.parametrize("codec", CODECS)
def test_cuts_and_fusion_do_not_change_a_bit(codec):
    compression = CODECS[codec].compression
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
    row = Codec(compression, sign, block)

    def on_rank(engine):
        residual = np.zeros((2, count), np.float32)
        kept, left = [np.zeros(count, np.float32) for _ in range(size)], np.zeros(count, np.float32)
        for step in range(4):
            arrays = [gradient(rank, count, step) + kept[rank] for rank in range(size)]
            key = tensor_key(step, "g")
            total, sent = expected(arrays, row, key, left)
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
        total, sent = expected(arrays, CODECS["sign"], tensor_key(0, "t"))
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
