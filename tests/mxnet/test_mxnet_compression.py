"""Compressors applied by hand, as Horovod's can be, and the rows of an alltoall."""

from __future__ import annotations


def test_compressors_go_there_and_back(on_ranks):
    (found,) = on_ranks(
        1,
        """
        found = {}
        for name in ("none", "fp16"):
            codec = getattr(rabit.Compression, name)
            for dtype in ("float64", "float32", "float16", "int32"):
                array = mx.nd.array([1, 2, 3], dtype=dtype)
                wire, context = codec.compress(array)
                back = codec.decompress(wire, context)
                found[f"{name} {dtype}"] = [
                    str(np.dtype(wire.dtype)), str(np.dtype(back.dtype)), back.asnumpy().tolist()]
        report(found)
        """,
    )

    for name in ("none", "fp16"):
        for dtype in ("float64", "float32", "float16", "int32"):
            wire = "float16" if name == "fp16" and dtype.startswith("float") else dtype
            assert found[f"{name} {dtype}"] == [wire, dtype, [1, 2, 3]]


def test_bf16_is_not_applied_by_hand_and_says_what_to_do(on_ranks):
    (text,) = on_ranks(
        1,
        """
        try:
            rabit.Compression.bf16.compress(mx.nd.ones((2,)))
            report("nothing")
        except rabit.Unsupported as error:
            report(str(error))
        """,
    )

    assert "Compression.bf16" in text and "float32" in text and "Compression.fp16" in text


def test_the_engine_compresses_with_the_same_objects(on_ranks):
    for found in on_ranks(
        2,
        """
        mine = mx.nd.array([1.0 + 2.0 ** -13, rank])
        found = [rabit.Compression.fp16.spec]
        for codec in (rabit.Compression.none, rabit.Compression.fp16, rabit.Compression.bf16):
            found.append(rabit.allreduce(mine, compression=codec).asnumpy().tolist())
        net = mx.gluon.nn.Dense(1, in_units=2)
        net.initialize()
        trainer = rabit.DistributedTrainer(
            net.collect_params(), "sgd", compression_params={"type": "fp16"})
        found.append([str(trainer._codec), trainer._compressor is None])
        try:
            rabit.DistributedTrainer(
                net.collect_params(), "sgd", compression=rabit.Compression.fp16,
                compression_params={"type": "bf16"})
        except rabit.InvalidArgument as error:
            found.append(str(error))
        report(found)
        """,
    ):
        exact, rounded = [1.0 + 2.0**-13, 0.5], [1.0, 0.5]
        assert found[:4] == ["fp16", exact, rounded, rounded]
        assert found[4] == ["fp16", True]
        assert "compression=fp16" in found[5] and "one of them" in found[5]


def test_alltoall_refuses_splits_that_are_no_integers(on_ranks):
    for texts in on_ranks(
        2,
        """
        texts = []
        for splits in ([1.5, 0.5], [1.0, 1.0], mx.nd.array([1, 1]), np.array([True, True])):
            try:
                rabit.alltoall(mx.nd.ones((2,)), splits=splits, name="x")
                texts.append("nothing")
            except rabit.InvalidArgument as error:
                texts.append(str(error))
        rows, _ = rabit.alltoall(mx.nd.ones((2,)), splits=np.array([1, 1], np.int32), name="x")
        texts.append(list(rows.shape))
        report(texts)
        """,
    ):
        for text, words in zip(
            texts[:-1],
            [("[1.5, 0.5]",), ("[1.0, 1.0]", "float64"), ("float32",), ("bool",)],
            strict=True,
        ):
            assert "alltoall 'alltoall.x' on rank" in text and "integers" in text, text
            assert all(word in text for word in words), text
        assert texts[-1] == [2]
