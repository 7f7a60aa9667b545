"""Fusion for each backend and compression for each operation, as the counters tell them (MCR-DL-A 9)."""

from __future__ import annotations

import numpy as np

import rabit
from rabit.testing import run_ranks

COUNT = 3000  # elements of a tensor
TENSORS = 4  # of one call, which may travel as one


def mixed_calls(engine):
    """A group of tensors for each backend, plain and with a codec; returns what was counted."""
    mine = [np.full(COUNT, 1 + engine.rank, np.float32) for _ in range(TENSORS)]
    for backend in ("builtin", "ps"):
        for codec in (None, rabit.Compression.fp16, rabit.Compression.minmax8(block=1024)):
            options = {} if codec is None else {"compression": codec}
            name = f"{backend}.{codec}"
            sums = rabit.grouped_allreduce(
                mine, op=rabit.Sum, name=name, backend=backend, **options
            )
            for each in sums:
                assert (each == 3).all()
    rabit.barrier(name="end")
    return rabit.statistics()


def test_tensors_are_fused_for_each_backend_and_compressed_for_each_operation():
    plain, half = 4 * TENSORS * COUNT, 2 * TENSORS * COUNT
    codes = TENSORS * (COUNT + 3 * 8)  # Of a block of 1024 there are two numbers besides.
    spec = "minmax8:block=1024"
    head = 8 + len(spec) + TENSORS * 20  # What tells a server what it adds up.

    for found in run_ranks(2, mixed_calls, backend="builtin,ps", inline_bytes=0):
        backends, codecs = found["backends"], found["codecs"]
        # The barrier is one more, which has no data.
        assert [backends["builtin"][each] for each in ("tensors", "buckets")] == [
            3 * TENSORS + 1,
            3 + 1,
        ]
        assert [backends["ps"][each] for each in ("tensors", "buckets")] == [3 * TENSORS, 3]
        assert backends["ps"]["bytes"] == 3 * plain
        assert backends["ps"]["wire_bytes"] == plain + half + codes + head
        # Half of the codes goes to the other rank, which adds it up, and half of the sums is this rank's.
        assert backends["builtin"]["wire_bytes"] == plain + half + codes
        assert {each: codecs[each]["tensors"] for each in codecs} == {
            "identity": 2 * TENSORS + 1, "fp16": 2 * TENSORS, spec: 2 * TENSORS
        }  # fmt: skip
        assert {each: codecs[each]["buckets"] for each in codecs} == {
            "identity": 3,
            "fp16": 2,
            spec: 2,
        }
        assert codecs["fp16"]["wire_bytes"] == 2 * half
        assert codecs[spec]["wire_bytes"] == codes + head + codes
