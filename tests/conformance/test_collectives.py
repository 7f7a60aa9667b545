"""Every collective against NumPy, on threads: ranks x transport x type x operation x size."""

from __future__ import annotations

import numpy as np
import pytest
from support import oracle

import rabit
from rabit import DType, ReduceOp, TensorView
from rabit.engine.tensor import numpy_dtype
from rabit.testing import run_ranks

SIZES = [1, 2, 3, 4]
TRANSPORTS = ["shm", "tcp"]


def jobs():
    for size in SIZES:
        for transport in TRANSPORTS if size > 1 else ["auto"]:
            yield pytest.param(size, transport, id=f"{size}-{transport}")


pytestmark = pytest.mark.parametrize(("size", "transport"), list(jobs()))


def inputs(dtype, shape, size):
    return [oracle.values(dtype, shape, rank) for rank in range(size)]


def test_allreduce_of_every_type_and_operation(size, transport):
    def on_rank(engine):
        for dtype in oracle.PLAIN_DTYPES:
            for op in ReduceOp:
                if not oracle.supports(dtype, op):
                    continue
                arrays = inputs(dtype, (7, 11), size)
                found = rabit.allreduce(arrays[engine.rank], name=f"{dtype}.{op}", op=op)
                what = f"{dtype} {op}"
                oracle.assert_equal(found, oracle.reduced(arrays, op), dtype, what)

    run_ranks(size, on_rank, transport)


def test_allreduce_of_every_size(size, transport):
    def on_rank(engine):
        for count in oracle.counts(size):
            arrays = inputs(DType.FLOAT32, (count,), size)
            found = rabit.allreduce(arrays[engine.rank], name=f"n{count}", op=rabit.Sum)
            expected = oracle.reduced(arrays, ReduceOp.SUM)
            oracle.assert_equal(found, expected, DType.FLOAT32, f"{count} elements")

    run_ranks(size, on_rank, transport)


def test_allreduce_across_many_partitions(size, transport):
    def on_rank(engine):
        arrays = inputs(DType.FLOAT64, (100_003,), size)
        found = rabit.allreduce(arrays[engine.rank], name="large", op=rabit.Average)
        oracle.assert_equal(found, oracle.reduced(arrays, ReduceOp.AVERAGE), DType.FLOAT64, "large")

    run_ranks(size, on_rank, transport, partition_bytes=4096)


def test_allreduce_in_place_gives_back_the_array(size, transport):
    def on_rank(engine):
        mine = np.full(5, engine.rank + 1.0)
        found = rabit.allreduce_(mine, name="x", op=rabit.Sum)

        assert found is mine
        assert mine.tolist() == [size * (size + 1) / 2] * 5

    run_ranks(size, on_rank, transport)


def test_allreduce_does_not_change_its_input(size, transport):
    def on_rank(engine):
        mine = np.full(5, engine.rank + 1.0)
        rabit.allreduce(mine, name="x", op=rabit.Sum)

        assert mine.tolist() == [engine.rank + 1.0] * 5

    run_ranks(size, on_rank, transport)


def test_allreduce_scales_before_and_after(size, transport):
    def on_rank(engine):
        mine = np.full(3, engine.rank + 1.0, np.float32)
        found = rabit.allreduce(
            mine, name="x", op=rabit.Sum, prescale_factor=0.5, postscale_factor=4.0
        )

        assert found.tolist() == [size * (size + 1)] * 3

    run_ranks(size, on_rank, transport)


def test_allreduce_of_bfloat16_bits(size, transport):
    def on_rank(engine):
        floats = [np.linspace(1, 2 + rank, 33, dtype=np.float32) for rank in range(size)]
        bits = oracle.bfloat16_bits(floats[engine.rank])
        found = rabit.allreduce(TensorView.bfloat16(bits), name="b", op=rabit.Sum)
        exact = sum(oracle.from_bfloat16_bits(oracle.bfloat16_bits(each)) for each in floats)

        assert found.dtype == np.uint16
        np.testing.assert_allclose(oracle.from_bfloat16_bits(found), exact, rtol=1.6e-2)

    run_ranks(size, on_rank, transport)


def tensor_of(array, dtype):
    return TensorView.bfloat16(array) if dtype is DType.BFLOAT16 else array


def means(engine, arrays, dtype):
    """(way, result, arrays of which it is the mean) of every call that averages."""
    mine, size = arrays[engine.rank], engine.size
    yield "one", rabit.allreduce(tensor_of(mine, dtype), name="one"), arrays
    handles = [rabit.allreduce_async(tensor_of(mine, dtype), name=f"joined{i}") for i in range(3)]
    yield "joined", [rabit.synchronize(handle) for handle in handles][1], arrays
    found = rabit.reduce(tensor_of(mine, dtype), root_rank=0, name="reduced")
    if engine.rank == 0:
        yield "reduced", found, arrays
    found = mine.copy()
    rabit.ordered_allreduce_(tensor_of(found, dtype))
    yield "ordered", found, arrays
    part = len(mine) // size
    own = slice(engine.rank * part, (engine.rank + 1) * part)
    whole, parts = mine[: size * part].copy(), [each[own] for each in arrays]
    yield "scattered", rabit.reducescatter(tensor_of(whole, dtype), name="scattered"), parts
    found = np.empty(part, mine.dtype)
    rabit.ordered_reducescatter_into(tensor_of(found, dtype), tensor_of(whole, dtype))
    yield "ordered, scattered", found, parts


def check_means(engine, counts):
    for dtype in oracle.NARROW_DTYPES:
        for count in counts:
            arrays = [oracle.ends(dtype, count, rank) for rank in range(engine.size)]
            for way, found, of in means(engine, arrays, dtype):
                oracle.assert_mean(found, of, dtype, f"{dtype} {count} {way}")


def test_a_mean_at_the_ends_of_a_type_is_right_by_every_call(size, transport):
    run_ranks(size, lambda engine: check_means(engine, [40, 6000]), transport)


def test_a_mean_at_the_ends_of_a_type_is_right_by_every_algorithm(size, transport):
    rings = "reducescatter:builtin/ring;*:builtin"
    run_ranks(size, lambda engine: check_means(engine, [6000]), transport, route=rings)
    for name in rabit.capabilities()["algorithms"]:
        run_ranks(
            size, lambda engine: check_means(engine, [6000]), transport, allreduce_algorithm=name
        )


def test_a_mean_that_is_scaled_is_rounded_once(size, transport):
    def on_rank(engine):
        mine = np.full(3, 40000, np.float16)
        found = rabit.allreduce(mine, name="x", postscale_factor=1.5)
        assert found.tolist() == [60000] * 3
        found = rabit.allreduce(mine, name="y", op=rabit.Sum, postscale_factor=1 / size)
        np.testing.assert_allclose(found, 40000, rtol=1e-3)
        found = rabit.allreduce(np.array([engine.rank], np.int8), name="z", postscale_factor=4.0)
        assert found.tolist() == [2 * (size - 1)]

    run_ranks(size, on_rank, transport)


@pytest.mark.parametrize(("codec", "largest"), [("fp16", 65504.0), ("bf16", 3.3895314e38)])
def test_a_compressed_mean_is_divided_before_it_is_rounded(size, transport, codec, largest):
    def on_rank(engine):
        mine = np.full(600, largest, np.float32)
        found = rabit.allreduce(mine, name="x", compression=getattr(rabit.Compression, codec))
        assert found.tolist() == mine.tolist()

    run_ranks(size, on_rank, transport)


@pytest.mark.parametrize("codec", ["fp16", "bf16"])
def test_allreduce_compressed(size, transport, codec):
    def on_rank(engine):
        arrays = inputs(DType.FLOAT32, (513,), size)
        compression = getattr(rabit.Compression, codec)
        found = rabit.allreduce(
            arrays[engine.rank], name="x", op=rabit.Sum, compression=compression
        )
        np.testing.assert_allclose(found, oracle.reduced(arrays, ReduceOp.SUM), rtol=2e-2)

        assert found.dtype == np.float32

    run_ranks(size, on_rank, transport)


def test_every_rank_has_the_same_bits(size, transport):
    def on_rank(engine):
        mine = np.random.default_rng((1, engine.rank)).standard_normal(50_001).astype(np.float32)
        return rabit.allreduce(mine, name="x").tobytes()

    assert len(set(run_ranks(size, on_rank, transport))) == 1


def test_grouped_allreduce(size, transport):
    def on_rank(engine):
        arrays = [np.full(count, engine.rank + 1.0) for count in (0, 1, 5, 1000)]
        found = rabit.grouped_allreduce(arrays, name="g", op=rabit.Sum)
        rabit.grouped_allreduce_(arrays, name="h", op=rabit.Sum)

        for out, own in zip(found, arrays, strict=True):
            assert out.tolist() == own.tolist() == [size * (size + 1) / 2] * len(own)

    run_ranks(size, on_rank, transport)


def test_reduce_reaches_the_root_alone(size, transport):
    def on_rank(engine):
        for root in range(size):
            arrays = inputs(DType.INT32, (9,), size)
            found = rabit.reduce(arrays[engine.rank], root, name=f"r{root}", op=rabit.Max)
            if engine.rank == root:
                expected = oracle.reduced(arrays, ReduceOp.MAX)
                oracle.assert_equal(found, expected, DType.INT32, f"root {root}")
            else:
                assert found is None

    run_ranks(size, on_rank, transport)


def test_reducescatter_gives_the_low_ranks_one_more_row(size, transport):
    def on_rank(engine):
        for rows in oracle.counts(size):
            for op in (rabit.Sum, rabit.Average, rabit.Max):
                arrays = inputs(DType.FLOAT32, (rows, 3), size)
                found = rabit.reducescatter(arrays[engine.rank], name=f"{rows}.{op}", op=op)
                share = np.array_split(oracle.reduced(arrays, op), size)[engine.rank]
                oracle.assert_equal(found, share, DType.FLOAT32, f"{rows} rows, {op}")

    run_ranks(size, on_rank, transport)


@pytest.mark.parametrize("partition_bytes", [100, 1 << 20])
def test_even_parts_of_every_type_cut_and_fused(size, transport, partition_bytes):
    dtypes = [DType.UINT8, DType.INT32, DType.INT64, DType.FLOAT16, DType.FLOAT32]

    def on_rank(engine):
        for dtype in dtypes:
            wholes = [inputs(dtype, (rows, 3), size) for rows in (*oracle.counts(size), 0, 4099)]
            shares = [np.array_split(each[0], size)[engine.rank] for each in wholes]
            sums = [oracle.reduced(each, ReduceOp.SUM) for each in wholes]
            for step in range(3):
                mine = [each[engine.rank] for each in wholes]
                scattered = rabit.grouped_reducescatter_async(mine, f"s{dtype}", rabit.Sum)
                gathered = rabit.grouped_allgather(shares, f"g{dtype}")
                for found, whole in zip(gathered, wholes, strict=True):
                    oracle.assert_equal(found, whole[0], dtype, f"step {step}")
                for found, total in zip(scattered.result(), sums, strict=True):
                    share = np.array_split(total, size)[engine.rank]
                    oracle.assert_equal(found, share, dtype, f"step {step}")

    run_ranks(size, on_rank, transport, partition_bytes=partition_bytes)


def test_allgather_with_uneven_rows_of_every_type(size, transport):
    def on_rank(engine):
        for dtype in oracle.PLAIN_DTYPES:
            arrays = [oracle.values(dtype, (rank * 2, 3), rank) for rank in range(size)]
            found = rabit.allgather(arrays[engine.rank], name=f"{dtype}")
            oracle.assert_equal(found, np.concatenate(arrays), dtype, f"{dtype}")

    run_ranks(size, on_rank, transport)


def test_allgather_of_scalars_and_of_nothing(size, transport):
    def on_rank(engine):
        assert rabit.allgather(engine.rank, name="s").tolist() == list(range(size))
        assert rabit.allgather(np.empty((0, 4), np.float32), name="e").shape == (0, 4)

    run_ranks(size, on_rank, transport)


def test_grouped_allgather_and_reducescatter(size, transport):
    def on_rank(engine):
        gathered = rabit.grouped_allgather([[engine.rank], [1.5]], name="g")
        shares = rabit.grouped_reducescatter([np.ones((size, 2)), np.ones(size)], op=rabit.Sum)

        assert gathered[0].tolist() == list(range(size))
        assert gathered[1].tolist() == [1.5] * size
        assert [each.tolist() for each in shares] == [[[size, size]], [size]]

    run_ranks(size, on_rank, transport)


def test_broadcast_from_every_root_and_of_every_type(size, transport):
    def on_rank(engine):
        for root in range(size):
            for dtype in oracle.PLAIN_DTYPES:
                arrays = inputs(dtype, (4, 5), size)
                found = rabit.broadcast(arrays[engine.rank], root, name=f"{root}.{dtype}")
                oracle.assert_equal(found, arrays[root], dtype, f"root {root}, {dtype}")

    run_ranks(size, on_rank, transport)


def test_broadcast_in_place(size, transport):
    def on_rank(engine):
        mine = np.full((2, 2), float(engine.rank))
        assert rabit.broadcast_(mine, size - 1, name="x") is mine
        assert mine.tolist() == [[size - 1.0] * 2] * 2

    run_ranks(size, on_rank, transport)


def test_alltoall_even_and_uneven(size, transport):
    def on_rank(engine):
        rank = engine.rank
        even = rabit.alltoall(np.arange(size * 2) + 100 * rank, name="even")
        expected = np.concatenate(
            [[2 * rank, 2 * rank + 1] + 100 * np.ones(2, int) * peer for peer in range(size)]
        )
        assert even.tolist() == expected.tolist()

        # Rank r sends r + i rows to rank i; some of them none.
        splits = [rank + i for i in range(size)]
        rows = np.repeat(np.arange(size), splits)[:, None] * np.ones(3) + 10 * rank
        found, received = rabit.alltoall(rows, splits, name="uneven")
        assert received == [peer + rank for peer in range(size)]
        assert found[:, 0].tolist() == [
            rank + 10 * peer for peer in range(size) for _ in range(peer + rank)
        ]

    run_ranks(size, on_rank, transport)


def test_gather_and_scatter_with_uneven_parts(size, transport):
    def on_rank(engine):
        for root in range(size):
            rank = engine.rank
            mine = np.full((rank, 2), rank, np.int16)
            everything = rabit.gather(mine, root, name=f"g{root}")
            splits = list(range(size))
            if rank == root:
                expected = np.repeat(np.arange(size), splits)
                assert everything[:, 0].tolist() == expected.tolist()
            else:
                assert everything is None
                everything = np.empty((0, 2), np.int16)
            back = rabit.scatter(
                everything, root, splits if rank == root else None, name=f"s{root}"
            )
            oracle.assert_equal(back, mine, DType.INT16, f"root {root}")

    run_ranks(size, on_rank, transport)


def test_send_and_recv_around_a_ring(size, transport):
    if size == 1:
        pytest.skip("one rank has no peer")

    def on_rank(engine):
        after, before = (engine.rank + 1) % size, (engine.rank - 1) % size
        sent = rabit.send_async(np.full(1000, engine.rank, np.int64), after)
        found = rabit.recv(np.empty(1000, np.int64), before)
        sent.result()

        assert set(found.tolist()) == {before}

    run_ranks(size, on_rank, transport)


def test_barrier_and_votes(size, transport):
    def on_rank(engine):
        rabit.barrier()
        assert rabit.any_rank(engine.rank == size - 1) is True
        assert rabit.any_rank(False) is False
        assert rabit.should_stop() is False
        if engine.rank == 0:
            rabit.request_stop()
        assert rabit.should_stop() is True

    run_ranks(size, on_rank, transport)


def test_objects(size, transport):
    def on_rank(engine):
        thing = {"rank": engine.rank, "list": [None, 1.5, "é"] * engine.rank}
        assert rabit.broadcast_object(thing, size - 1)["rank"] == size - 1
        assert [each["rank"] for each in rabit.allgather_object(thing)] == list(range(size))
        assert (
            rabit.broadcast_object(b"x" * 100_000 if engine.rank == 0 else None) == b"x" * 100_000
        )

    run_ranks(size, on_rank, transport)


def test_join_returns_the_last_rank_and_lets_the_others_go_on(size, transport):
    def on_rank(engine):
        for step in range(engine.rank + 1):
            found = rabit.allreduce(np.ones(3), name=f"step{step}", op=rabit.Sum)
            assert found.tolist() == [size - step] * 3
        return rabit.join()

    assert run_ranks(size, on_rank, transport) == [size - 1] * size


def test_calls_without_names_meet_after_a_join(size, transport):
    def on_rank(engine):
        everybody = rabit.add_process_set(range(size))
        for _ in range(2):
            for step in range(engine.rank + 1):  # Ranks that have joined miss calls of the others.
                assert rabit.allreduce(1.0, op=rabit.Sum) == size - step
                assert len(rabit.allgather([step], process_set=everybody)) == size - step
                rabit.grouped_allreduce([np.ones(2), np.ones(3)])
            assert rabit.join() == size - 1
            assert rabit.allreduce(1.0, op=rabit.Sum) == size
            assert rabit.allgather([1], process_set=everybody).tolist() == [1] * size
            assert rabit.broadcast_object(engine.rank, size - 1) == size - 1
            rabit.barrier()

    run_ranks(size, on_rank, transport)


def test_process_sets(size, transport):
    def on_rank(engine):
        low = rabit.add_process_set(range((size + 1) // 2))
        assert low.size() == (size + 1) // 2
        assert low.included() == (engine.rank < low.size())
        if low.included():
            assert low.rank() == engine.rank
            found = rabit.allgather([engine.rank], process_set=low)
            assert found.tolist() == low.ranks
            assert rabit.broadcast(float(engine.rank), 0, process_set=low) == 0.0
        assert rabit.remove_process_set(low) is True
        assert rabit.remove_process_set(low) is False
        assert low.process_set_id is None

    run_ranks(size, on_rank, transport)


def test_many_operations_in_flight(size, transport):
    def on_rank(engine):
        order = np.random.default_rng(engine.rank).permutation(200)
        handles = {
            index: rabit.allreduce_async(np.full(index, 1.0), name=f"t{index}", op=rabit.Sum)
            for index in order
        }
        for index, handle in handles.items():
            assert rabit.synchronize(handle).tolist() == [size] * index
            assert rabit.poll(handle)

    run_ranks(size, on_rank, transport)


def test_algorithms_agree(size, transport):
    arrays = [np.random.default_rng((3, rank)).integers(0, 9, 10_001) for rank in range(size)]

    def on_rank(engine):
        return rabit.allreduce(arrays[engine.rank], name="x", op=rabit.Sum)

    for name in rabit.capabilities()["algorithms"]:
        for found in run_ranks(size, on_rank, transport, allreduce_algorithm=name):
            np.testing.assert_array_equal(found, sum(arrays), err_msg=name)


def test_results_of_the_engine_are_not_copied(size, transport):
    def on_rank(engine):
        handle = rabit.allgather_async(np.ones((2, 3), numpy_dtype(DType.FLOAT32)), name="x")
        found = handle.result()
        view = handle.output_view()
        shape = handle.output_shape
        del handle

        assert found.ctypes.data == view.data
        assert shape == (2 * size, 3)
        assert found.sum() == 6 * size

    run_ranks(size, on_rank, transport)
