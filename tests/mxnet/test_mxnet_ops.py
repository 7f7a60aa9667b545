"""The collectives on MXNet arrays."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_every_collective_gives_the_right_values(on_ranks, ranks):
    total = ranks * (ranks + 1) / 2
    for values in on_ranks(
        ranks,
        """
        ones = mx.nd.ones((3, 2))
        mine = ones * (rank + 1)
        out = {}
        out["mean"] = rabit.allreduce(mine, name="a").asnumpy().tolist()
        out["sum"] = rabit.allreduce(mine, average=False, name="b", priority=5).asnumpy().tolist()
        out["max"] = rabit.allreduce(mine, op=rabit.Max).asnumpy().tolist()
        out["unchanged"] = mine.asnumpy().tolist()
        same = rabit.allreduce_(mine, op=rabit.Sum, prescale_factor=2.0, postscale_factor=0.5)
        out["in_place"] = [same is mine, mine.asnumpy().tolist()]
        group = rabit.grouped_allreduce([ones * rank, ones[:1] + rank], op=rabit.Sum)
        out["group"] = [each.asnumpy().tolist() for each in group]
        pair = [ones * rank, ones[:1] + rank]
        pair = [mx.nd.array(each.asnumpy()) for each in pair]
        rabit.grouped_allreduce_(pair, op=rabit.Sum, name="g")
        out["group_"] = [each.asnumpy().tolist() for each in pair]
        out["broadcast"] = rabit.broadcast(ones * rank, size - 1).asnumpy().tolist()
        target = ones * rank
        rabit.broadcast_(target, 0, name="w", priority=1)
        out["broadcast_"] = target.asnumpy().tolist()
        rows = mx.nd.full((rank + 1, 2), rank, dtype="int32")
        out["gather"] = rabit.allgather(rows, priority=3).asnumpy().tolist()
        out["gathers"] = [e.asnumpy().tolist() for e in rabit.grouped_allgather([rows, rows[:1]])]
        out["scatter"] = rabit.reducescatter(mx.nd.ones((2 * size + 1, 2)), op=rabit.Sum).asnumpy().tolist()
        out["scatters"] = [e.shape for e in rabit.grouped_reducescatter([mx.nd.ones((size,)), mx.nd.ones((2 * size,))])]
        parts = mx.nd.array(list(range(size)), dtype="int64")
        out["all"] = rabit.alltoall(parts).asnumpy().tolist()
        got, splits = rabit.alltoall(parts, splits=mx.nd.array([1] * size, dtype="int32"))
        out["splits"] = [got.asnumpy().tolist(), splits.asnumpy().tolist(), str(np.dtype(splits.dtype))]
        out["objects"] = rabit.allgather_object({"rank": rank})
        out["object"] = rabit.broadcast_object(f"from {rank}", root_rank=size - 1)
        out["rank"] = rank
        report(out)
        """,
    ):
        rank = values["rank"]
        assert values["mean"] == [[total / ranks] * 2] * 3
        assert values["sum"] == [[total] * 2] * 3
        assert values["max"] == [[float(ranks)] * 2] * 3
        assert values["unchanged"] == [[rank + 1.0] * 2] * 3
        assert values["in_place"] == [True, [[total] * 2] * 3]
        below = ranks * (ranks - 1) / 2
        assert values["group"] == [[[below] * 2] * 3, [[below + ranks] * 2]]
        assert values["group_"] == values["group"]
        assert values["broadcast"] == [[ranks - 1.0] * 2] * 3
        assert values["broadcast_"] == [[0.0] * 2] * 3
        gathered = [[each] * 2 for each in range(ranks) for _ in range(each + 1)]
        assert values["gather"] == gathered
        assert values["gathers"] == [gathered, [[each] * 2 for each in range(ranks)]]
        assert values["scatter"] == [[float(ranks)] * 2] * (3 if rank == 0 else 2)
        assert values["scatters"] == [[1], [2]]
        assert values["all"] == [rank] * ranks
        assert values["splits"] == [[rank] * ranks, [1] * ranks, "int32"]
        assert values["objects"] == [{"rank": each} for each in range(ranks)]
        assert values["object"] == f"from {ranks - 1}"


def test_every_element_type_and_mx_np_arrays(on_ranks):
    for values in on_ranks(
        2,
        """
        out = {}
        for dtype in ("uint8", "int8", "int32", "int64", "float16", "float32", "float64"):
            result = rabit.allreduce(mx.nd.full((5,), rank + 1, dtype=dtype), op=rabit.Sum)
            out[dtype] = [str(np.dtype(result.dtype)), result.asnumpy().tolist()]
        array = mx.np.ones((2, 3)) * rank
        result = rabit.allreduce(array, op=rabit.Sum)
        out["family"] = [type(result) is type(array), result.asnumpy().tolist()]
        out["gather"] = type(rabit.allgather(array)) is type(array)
        report(out)
        """,
    ):
        assert values.pop("family") == [True, [[1.0] * 3] * 2]
        assert values.pop("gather")
        assert values == {each: [each, [3] * 5] for each in values}
        assert len(values) == 7


def test_process_sets_reduce_on_their_own(on_ranks):
    values = on_ranks(
        3,
        """
        pair = rabit.add_process_set([0, 2])
        found = None
        if pair.included():
            found = rabit.allreduce(mx.nd.ones((2,)) * rank, op=rabit.Sum, process_set=pair)
            found = found.asnumpy().tolist()
            gathered = rabit.allgather(mx.nd.full((1,), rank), process_set=pair).asnumpy().tolist()
            found = [found, gathered]
        # Ranks outside of the set have not counted its calls.
        report([found, rabit.allreduce(mx.nd.ones((1,)), op=rabit.Sum).asnumpy().tolist()])
        """,
    )

    inside = [[2.0, 2.0], [0.0, 2.0]]
    assert values == [[inside, [3.0]], [None, [3.0]], [inside, [3.0]]]


def test_results_of_a_convolution_are_reduced_in_row_major_order(on_ranks):
    """oneDNN keeps such results in a blocked layout."""
    for values in on_ranks(
        2,
        """
        mx.random.seed(3)
        image = mx.nd.random.uniform(shape=(2, 16, 8, 8))
        weight = mx.nd.random.uniform(shape=(16, 16, 3, 3))
        convolve = lambda: mx.nd.Convolution(image, weight, kernel=(3, 3), num_filter=16, no_bias=True)
        expected = convolve().asnumpy()
        copied = rabit.allreduce(convolve(), op=rabit.Average)
        place = convolve()
        rabit.allreduce_(place, op=rabit.Average)
        spread = rabit.broadcast(convolve(), 0)
        report([float(abs(each.asnumpy() - expected).max()) for each in (copied, place, spread)])
        """,
    ):
        assert values == [0.0, 0.0, 0.0]


def test_what_cannot_work_says_why(on_ranks):
    (texts, _) = on_ranks(
        2,
        """
        texts = []
        def attempt(action):
            try:
                action()
            except rabit.RabitError as error:
                texts.append(f"{type(error).__name__}: {error}")
        attempt(lambda: rabit.allreduce([1.0, 2.0], name="x"))
        attempt(lambda: rabit.allreduce(mx.nd.ones((4, 2)).tostype("row_sparse"), name="x"))
        attempt(lambda: rabit.broadcast(mx.nd.ones((1,)), 7, name="x"))
        attempt(lambda: rabit.alltoall(mx.nd.ones((5,)), name="x"))
        attempt(lambda: rabit.allreduce(mx.nd.ones((1,)), average=True, op=rabit.Sum))
        attempt(lambda: rabit.grouped_allreduce([], name="x"))
        attempt(lambda: rabit.broadcast_parameters([1]))
        report(texts)
        """,
    )

    assert len(texts) == 7
    for text, words in zip(
        texts,
        [
            ("InvalidArgument", "list", "broadcast_object"),
            ("Unsupported", "row_sparse", "tostype"),
            ("InvalidArgument", "root_rank is 7", "[0, 1]"),
            ("InvalidArgument", "5 rows", "splits"),
            ("InvalidArgument", "average=True", "op alone"),
            ("InvalidArgument", "one or more", "grouped_"),
            ("InvalidArgument", "ParameterDict", "collect_params"),
        ],
        strict=True,
    ):
        assert all(word in text for word in words), text


def test_an_error_of_the_engine_is_raised_where_the_result_is_read(on_ranks):
    for texts in on_ranks(
        2,
        """
        texts = []
        result = rabit.allreduce(mx.nd.ones((2 + rank,)), name="weights")
        try:
            result.asnumpy()
        except rabit.Mismatch as error:
            texts.append(str(error))
        after = rabit.allreduce(mx.nd.ones((3,)), name="weights", op=rabit.Sum)
        texts.append(after.asnumpy().tolist())
        report(texts)
        """,
    ):
        assert texts[0].startswith("allreduce 'allreduce.weights'")
        assert "[2]" in texts[0] and "[3]" in texts[0]
        assert texts[1] == [2.0] * 3


def test_operations_in_which_one_rank_differs_give_the_right_values(on_ranks):
    for values in on_ranks(
        2,
        """
        mine = mx.nd.full((2, 2), rank + 1)
        out = [rabit.reduce(mine, 1, op=rabit.Sum, name="r"), rabit.gather(mine, 0, backend="builtin")]
        out.append(rabit.scatter(mx.nd.full((3, 1), rank + 5), 0, splits=mx.nd.array([1, 2], dtype="int32")))
        block = mx.nd.full((1, 2, 1, 1), rank + 3)  # which oneDNN may hold in another layout
        out.append(block if rank == 0 else rabit.recv(block, 0))
        if rank == 0:
            rabit.send(block, 1)
        report([None if array is None else array.reshape(-1).asnumpy().tolist() for array in out])
        """,
    ):
        first, second, *more = values
        assert (first, second) in [(None, [1.0] * 4 + [2.0] * 4), ([3.0] * 4, None)]
        assert more == [[5.0] if first is None else [5.0] * 2, [3.0] * 2]


def test_a_call_that_is_refused_raises_on_the_ranks_that_wait_for_it(on_ranks):
    for texts in on_ranks(
        2,
        """
        ones, said = mx.nd.ones((2, 2)), []
        wrong = [
            lambda: rabit.allreduce("text", name="a"),
            lambda: rabit.grouped_allreduce([], name="b"),
            lambda: rabit.broadcast(ones, 7, name="c"),
            lambda: rabit.allgather("text", name="d"),
            lambda: rabit.alltoall(ones, splits=[0.5, 1.5], name="e"),
        ]
        right = [
            lambda: rabit.allreduce(ones, name="a"),
            lambda: rabit.grouped_allreduce([ones], name="b")[0],
            lambda: rabit.broadcast(ones, 0, name="c"),
            lambda: rabit.allgather(ones, name="d"),
            lambda: rabit.alltoall(ones, splits=[1, 1], name="e")[0],
        ]
        for call in wrong if rank == 0 else right:
            try:
                call().wait_to_read()
            except rabit.InvalidArgument as error:
                said.append(str(error))
        report(said)
        """,
    ):
        reasons = (
            "str, not an MXNet NDArray",
            "an empty list",
            "root_rank is 7",
            "str, not an",
            "in integers",
        )
        assert [reason in text for reason, text in zip(reasons, texts, strict=True)] == [True] * 5


def test_calls_return_before_other_ranks_have_called(on_ranks):
    """Rank 0 submits everything before rank 1 starts; only reading waits."""
    for value in on_ranks(
        2,
        """
        start = Path(os.environ["HOME"], "rank0_has_submitted")
        if rank == 1:
            import time
            deadline = time.monotonic() + 60
            while not start.exists() and time.monotonic() < deadline:
                time.sleep(0.01)
            assert start.exists()
        array = mx.nd.ones((1000,)) * (rank + 1)
        for turn in range(5):
            rabit.allreduce_(array, op=rabit.Sum, name=f"turn{turn}")
            array *= 0.5
        start.touch()
        report(float(array[0].asscalar()))
        """,
    ):
        assert value == 1.5


def test_without_mxnets_engine_the_calls_wait_and_say_so(on_ranks):
    for values in on_ranks(
        2,
        """
        import warnings
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            results = [rabit.allreduce(mx.nd.ones((2, 2)), op=rabit.Sum) for _ in range(3)]
        report([str(each.message) for each in said] + [float(results[2].sum().asscalar())])
        """,
        MXNET_ENGINE_TYPE="NaiveEngine",
    ):
        assert len(values) == 2 and "NaiveEngine" in values[0]
        assert values[1] == 8.0
