"""Every collective on every type and many sizes, for the backend that argument 1 names.

Argument 2, if there: so many ranks count as those of one host.

Runs on all ranks of one job, under any launcher, and prints one line "checked N" at the end.
"""

from __future__ import annotations

import sys

import numpy as np
from support import oracle
from support.mpi import pretend_hosts

import rabit
from rabit import DType, ReduceOp, TensorView

COUNTS_MORE = (70_001, 300_007)  # on both sides of where a backend may change its algorithm


class Checks:
    def __init__(self, backend: str, members: list[int], process_set: rabit.ProcessSet) -> None:
        self.backend = backend
        self.members = members
        self.size = len(members)
        self.me = members.index(rabit.rank())
        self.checked = 0
        self.where = {"process_set": process_set, "backend": backend}
        self.prefix = f"{backend}.{'-'.join(map(str, members))}"

    def name(self, text: object) -> str:
        return f"{self.prefix}.{text}"

    def inputs(self, dtype, shape):
        return [oracle.values(dtype, shape, rank) for rank in range(self.size)]

    def equal(self, found, expected, dtype, what) -> None:
        oracle.assert_equal(found, expected, dtype, self.name(what))
        self.checked += 1

    def allreduce(self) -> None:
        for dtype in oracle.PLAIN_DTYPES:
            for op in ReduceOp:
                if not oracle.supports(dtype, op):
                    continue
                arrays = self.inputs(dtype, (7, 11))
                what = self.name(f"allreduce.{dtype}.{op}")
                found = rabit.allreduce(arrays[self.me], name=what, op=op, **self.where)
                self.equal(found, oracle.reduced(arrays, op), dtype, what)
        for dtype in (DType.FLOAT32, DType.FLOAT16, DType.INT64, DType.BOOL):
            for count in (*oracle.counts(self.size), *COUNTS_MORE):
                arrays = self.inputs(dtype, (count,))
                what = self.name(f"allreduce.{dtype}.{count}")
                found = rabit.allreduce(arrays[self.me], name=what, op=rabit.Sum, **self.where)
                self.equal(found, oracle.reduced(arrays, ReduceOp.SUM), dtype, what)

    def allreduce_bfloat16(self) -> None:
        floats = [np.linspace(1, 2 + rank, 33, dtype=np.float32) for rank in range(self.size)]
        mine = TensorView.bfloat16(oracle.bfloat16_bits(floats[self.me]))
        found = rabit.allreduce(mine, name=self.name("bf16"), op=rabit.Sum, **self.where)
        exact = sum(oracle.from_bfloat16_bits(oracle.bfloat16_bits(each)) for each in floats)
        np.testing.assert_allclose(oracle.from_bfloat16_bits(found), exact, rtol=1.6e-2)
        self.checked += 1

    def means_at_the_ends_of_a_type(self) -> None:
        for dtype in oracle.NARROW_DTYPES:
            for count in (40, COUNTS_MORE[0]):
                arrays = [oracle.ends(dtype, count, rank) for rank in range(self.size)]
                mine = arrays[self.me]
                tensor = TensorView.bfloat16(mine) if dtype is DType.BFLOAT16 else mine
                what = self.name(f"mean.{dtype}.{count}")
                oracle.assert_mean(
                    rabit.allreduce(tensor, name=what, **self.where), arrays, dtype, what
                )
                own = np.array_split(np.arange(count), self.size)[self.me]
                part = rabit.reducescatter(tensor, f"{what}.part", **self.where)
                oracle.assert_mean(part, [each[own] for each in arrays], dtype, what)
                self.checked += 2

    def minimum_with_nan(self) -> None:
        """A NaN on any rank wins, as in NumPy."""
        mine = np.array([self.me, 1.0, -1.0], np.float32)
        mine[1] = np.nan if self.me == self.size - 1 else 1.0
        for op in (rabit.Min, rabit.Max):
            found = rabit.allreduce(mine, name=self.name(f"nan.{op}"), op=op, **self.where)
            assert np.isnan(found).tolist() == [False, True, False], found
            self.checked += 1

    def reduce(self) -> None:
        for root in range(self.size):
            for dtype in (DType.INT32, DType.FLOAT32, DType.FLOAT16):
                for count in (1, 9, *COUNTS_MORE):
                    arrays = self.inputs(dtype, (count,))
                    what = self.name(f"reduce.{dtype}.{count}.{root}")
                    found = rabit.reduce(
                        arrays[self.me], self.members[root], what, rabit.Sum, **self.where
                    )
                    if self.me != root:
                        assert found is None
                        continue
                    self.equal(found, oracle.reduced(arrays, ReduceOp.SUM), dtype, what)

    def reducescatter(self) -> None:
        for dtype in (DType.FLOAT32, DType.INT64, DType.BOOL):
            for rows in (*oracle.counts(self.size), COUNTS_MORE[0]):
                arrays = self.inputs(dtype, (rows, 3))
                what = self.name(f"reducescatter.{dtype}.{rows}")
                found = rabit.reducescatter(arrays[self.me], what, op=rabit.Sum, **self.where)
                expected = np.array_split(oracle.reduced(arrays, ReduceOp.SUM), self.size)
                self.equal(found, expected[self.me], dtype, what)

    def allgather(self) -> None:
        for dtype in oracle.PLAIN_DTYPES:
            for rows in (1, 2, 5001):
                arrays = [oracle.values(dtype, (r * rows, 3), r) for r in range(self.size)]
                what = self.name(f"allgather.{dtype}.{rows}")
                found = rabit.allgather(arrays[self.me], what, **self.where)
                self.equal(found, np.concatenate(arrays), dtype, what)

    def even_parts(self) -> None:
        """Cut, and several in one bucket."""
        for dtype in (DType.UINT8, DType.INT64, DType.FLOAT16, DType.FLOAT32):
            wholes = [self.inputs(dtype, (rows, 3)) for rows in (*oracle.counts(self.size), 5001)]
            mine = [each[self.me] for each in wholes]
            shares = [np.array_split(each[0], self.size)[self.me] for each in wholes]
            what = self.name(f"even.{dtype}")
            sums = rabit.grouped_reducescatter(mine, f"{what}.s", rabit.Sum, **self.where)
            for found, each in zip(sums, wholes, strict=True):
                total = oracle.reduced(each, ReduceOp.SUM)
                self.equal(found, np.array_split(total, self.size)[self.me], dtype, what)
            for found, each in zip(
                rabit.grouped_allgather(shares, f"{what}.g", **self.where), wholes, strict=True
            ):
                self.equal(found, each[0], dtype, what)

    def broadcast(self) -> None:
        for root in range(self.size):
            for dtype in oracle.PLAIN_DTYPES:
                for count in (0, 5, COUNTS_MORE[0]):
                    arrays = self.inputs(dtype, (count,))
                    what = self.name(f"broadcast.{dtype}.{count}.{root}")
                    found = rabit.broadcast(arrays[self.me], self.members[root], what, **self.where)
                    self.equal(found, arrays[root], dtype, what)

    def alltoall(self) -> None:
        for factor in (1, 3000):
            splits = [(self.me + peer) % 3 * factor for peer in range(self.size)]
            rows = np.repeat(np.arange(self.size), splits)[:, None] * np.ones(3) + 10 * self.me
            what = self.name(f"alltoall.{factor}")
            found, received = rabit.alltoall(rows, splits, what, **self.where)
            assert received == [(peer + self.me) % 3 * factor for peer in range(self.size)]
            expected = np.repeat(np.arange(self.size) * 10 + self.me, received)
            self.equal(found[:, 0], expected.astype(float), DType.FLOAT64, what)

    def gather_and_scatter(self) -> None:
        for root in range(self.size):
            for factor in (1, 4001):
                mine = np.full((self.me * factor, 2), self.me, np.int16)
                what = f"{factor}.{root}"
                there = self.members[root]
                every = rabit.gather(mine, there, self.name(f"gather.{what}"), **self.where)
                splits = [rank * factor for rank in range(self.size)]
                if self.me == root:
                    expected = np.repeat(np.arange(self.size), splits)
                    self.equal(every[:, 0], expected.astype(np.int16), DType.INT16, what)
                else:
                    assert every is None
                    every = np.empty((0, 2), np.int16)
                back = rabit.scatter(
                    every, there, splits if self.me == root else None,
                    self.name(f"scatter.{what}"), **self.where,
                )  # fmt: skip
                self.equal(back, mine, DType.INT16, what)

    def messages(self) -> None:
        if self.size < 2 or self.size != rabit.size():
            return
        right, left = (self.me + 1) % self.size, (self.me - 1) % self.size
        for count in (0, 1, 300_007):
            into = np.zeros(count)
            names = [self.name(f"message.{count}.{sender}") for sender in (self.me, left)]
            pending = rabit.recv_async(into, left, names[1], backend=self.backend)
            rabit.send(np.full(count, self.me + 0.5), right, names[0], backend=self.backend)
            pending.result()
            self.equal(into, np.full(count, left + 0.5), DType.FLOAT64, names[1])

    def run(self) -> int:
        for check in (
            self.allreduce, self.allreduce_bfloat16, self.means_at_the_ends_of_a_type,
            self.minimum_with_nan, self.reduce,
            self.reducescatter, self.allgather, self.even_parts, self.broadcast, self.alltoall,
            self.gather_and_scatter, self.messages,
        ):  # fmt: skip
            check()
            rabit.barrier(self.where["process_set"], backend=self.backend)
        return self.checked


def main() -> None:
    backend = sys.argv[1]
    if len(sys.argv) > 2:
        pretend_hosts(int(sys.argv[2]))
    rabit.init()
    size, rank = rabit.size(), rabit.rank()
    checked = Checks(backend, list(range(size)), rabit.global_process_set).run()
    subsets = [list(range(size - 1)), list(range(0, size, 2)), [size - 1]] if size > 2 else []
    for members in subsets:
        process_set = rabit.add_process_set(members)
        if rank in members:
            checked += Checks(backend, members, process_set).run()
    rabit.barrier()
    print(f"checked {checked}", flush=True)
    rabit.shutdown()


if __name__ == "__main__":
    main()
