"""Ranks that call different collectives are told, on both sides.  Run under torchrun."""

import inspect
import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import rabit
import rabit_torch.distributed

torch.set_num_threads(1)
dist.init_process_group("rabit", timeout=timedelta(seconds=60))
rank, size = dist.get_rank(), dist.get_world_size()
is_last = rank == size - 1


def size_differs(group):
    dist.all_reduce(torch.ones(3 if is_last else 2), group=group)


def dtype_differs(group):
    dtype = torch.int64 if is_last else torch.float32
    dist.broadcast(torch.ones(4, dtype=dtype), 0, group=group)


def operation_differs(group):
    if is_last:
        dist.barrier(group=group)
    else:
        dist.all_gather_into_tensor(torch.empty(2 * size), torch.ones(2), group=group)


def the_third_differs(group):
    works = [
        dist.all_reduce(torch.ones(5 + (index == 2 and is_last)), group=group, async_op=True)
        for index in range(6)
    ]
    for work in works:
        work.wait()


def backward_differs(group):
    layer = torch.nn.Linear(4, 4, bias=is_last)
    layer = DistributedDataParallel(
        layer, process_group=group, init_sync=False, broadcast_buffers=False
    )
    layer(torch.ones(1, 4)).sum().backward()


def sparse_shape_differs(group):
    extent = 5 if is_last else 4
    dist.all_reduce(torch.sparse_coo_tensor([[extent - 1]], [1.0], (extent,)), group=group)


def nine_in_flight(group):
    for _ in range(9):
        dist.all_reduce(torch.ones(8 if is_last else 7), group=group, async_op=True)


def root_differs(group):
    dist.broadcast(torch.ones(4), size - 1 if is_last else 0, group=group)


def refuses_all(group, first):
    """A rank whose call has failed is one operation ahead: the next would be summed with it."""
    for call in (
        lambda: dist.all_reduce(torch.ones(2), group=group),
        lambda: dist.barrier(group=group),
        lambda: dist.send(torch.ones(2), (rank + 1) % size, group=group),
        lambda: dist.recv(torch.ones(2), group=group),
        lambda: rabit_torch.distributed.monitored_barrier(group),
    ):
        try:
            call()
            raise SystemExit(f"a group that has ended took a call, after: {first}")
        except rabit.Mismatch as error:
            assert "destroy_process_group" in str(error), error
            assert str(error).endswith(first), (str(error), first)


cases = [
    (size_differs, ("allreduce of float32[2]", "allreduce of float32[3]")),
    (dtype_differs, ("broadcast of float32[4]", "broadcast of int64[4]")),
    (operation_differs, (f"allgather of float32[{2 * size}]", "barrier")),
    (the_third_differs, ("collective 3", "allreduce of float32[5]", "allreduce of float32[6]")),
    (sparse_shape_differs, ("[4] with 1 sparse dimension", "[5] with 1 sparse dimension")),
    (nine_in_flight, ("allreduce of float32[7]", "allreduce of float32[8]")),
]
# Before torch 2.6 DDP always compares the models itself, before any step.
if "init_sync" in inspect.signature(DistributedDataParallel).parameters:
    cases.append((backward_differs, ("allreduce of float32[16]", "allreduce of float32[20]")))
for case, both in cases:
    group = dist.new_group(list(range(size)), backend="rabit")
    dist.barrier()
    began = time.monotonic()
    try:
        case(group)
        raise SystemExit(f"{case.__name__} was not noticed")
    except rabit.Mismatch as error:
        text = str(error)
    took = time.monotonic() - began
    for words in (*both, f"on rank {size - 1}"):
        assert words in text, (case.__name__, words, text)
    assert took < 5, (case.__name__, took)  # 0.3 to 0.8 s where the processors are free
    if case is not sparse_shape_differs:  # whose calls correspond
        refuses_all(group, text)
    dist.destroy_process_group(group)
    dist.barrier()

# The calls correspond, and every rank has got the error: the group continues.
group = dist.new_group(list(range(size)), backend="rabit")
try:
    root_differs(group)
    raise SystemExit("the root was not noticed")
except rabit.Mismatch:
    found = torch.ones(4)
    dist.all_reduce(found, group=group)
    assert found.tolist() == [size] * 4, found

slow = dist.new_group(list(range(size)), backend="rabit")
dist.barrier()
try:
    if rank != 0:
        dist.all_reduce(torch.ones(2), group=slow, async_op=True).wait(timedelta(seconds=1))
        raise SystemExit("the allreduce did not wait for rank 0")
except rabit.TimedOut as error:
    assert "has not finished after 1 s" in str(error), error
dist.barrier()
try:
    size_differs(None)
    raise SystemExit("the size was not noticed")
except rabit.Mismatch as error:
    refuses_all(None, str(error))
store = dist.distributed_c10d._get_default_store()
store.set(f"told.{rank}", "")
store.wait([f"told.{each}" for each in range(size)])  # Others would lose a rank that ends at once.
dist.destroy_process_group()
dist.init_process_group("rabit", timeout=timedelta(seconds=60))
found = torch.full((2,), 5.0)
dist.all_reduce(found)
assert found.tolist() == [5 * size] * 2, found
print(f"done {rank} {os.getpid()}", flush=True)
dist.barrier()
