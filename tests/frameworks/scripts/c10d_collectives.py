"""Every collective of torch.distributed on backend rabit, against gloo.  Run under torchrun."""

import os
import tempfile
import time
from datetime import timedelta

import torch
import torch.distributed as dist

import rabit_torch.distributed
from rabit_torch.distributed.late_ranks import MonitoredBarrier

torch.set_num_threads(1)
dist.init_process_group("rabit", timeout=timedelta(seconds=60))
rank, size = dist.get_rank(), dist.get_world_size()
gloo = dist.new_group(backend="gloo")
assert dist.get_backend() == "rabit"


def values(shape, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(100 * seed + rank)
    return torch.randint(1, 5, shape, generator=generator).to(dtype)


def both(operation):
    """What `operation(group)` gives on both backends."""
    mine, expected = operation(None), operation(gloo)
    for a, b in zip(mine, expected, strict=True):
        assert torch.equal(a, b), (operation, a, b)


def reduction(op, dtype):
    def run(group):
        x = values((5, 3), 1, dtype)
        dist.all_reduce(x, op, group=group)
        return [x]

    return run


for op in (dist.ReduceOp.SUM, dist.ReduceOp.MIN, dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT):
    for dtype in (torch.float32, torch.float64, torch.int64, torch.uint8, torch.bfloat16):
        both(reduction(op, dtype))
both(reduction(dist.ReduceOp.BOR, torch.int32))
average = values((4,), 2)
total = average.clone()
dist.all_reduce(average, dist.ReduceOp.AVG)
dist.all_reduce(total)
assert torch.equal(average, total / size)
# A mean is right where the sum leaves the type.
for dtype, value in (
    (torch.float16, 40000.0),
    (torch.bfloat16, 3.3e38),
    (torch.int8, 100),
    (torch.uint8, 200),
):
    same = torch.full((4 * size,), value, dtype=dtype)
    mean, part = same.clone(), torch.empty(4, dtype=dtype)
    dist.all_reduce(mean, dist.ReduceOp.AVG)
    assert torch.equal(mean, same), (dtype, mean)
    dist.reduce_scatter_tensor(part, same, dist.ReduceOp.AVG)
    assert torch.equal(part, same[:4]), (dtype, part)


def strided(group):
    x = values((6, 4), 3)[:, ::2]
    x = x.contiguous() if group is gloo else x  # gloo gives wrong values for strided tensors
    dist.all_reduce(x, group=group)
    return [x]


def complex_sum(group):
    x = torch.complex(values((3,), 4), values((3,), 5))
    dist.all_reduce(x, group=group)
    return [x]


def broadcast(group):
    x = values((3, 2), 6)
    dist.broadcast(x, size - 1, group=group)
    return [x]


def gather_all(group):
    outputs = [torch.empty(2, 2) for _ in range(size)]
    dist.all_gather(outputs, values((2, 2), 7), group=group)
    return outputs


def gather_bool(group):
    outputs = [torch.empty(3, dtype=torch.bool) for _ in range(size)]
    dist.all_gather(outputs, values((3,), 7) > 2, group=group)
    return outputs


def gather_single(group):
    output = torch.empty(3 * size, 2)
    dist.all_gather_into_tensor(output, values((3, 2), 8), group=group)
    return [output]


def own_part(whole, group):
    """Of the sum over all ranks; gloo has no reduce-scatter of its own before torch 2.6."""
    dist.all_reduce(whole, group=group)
    return [whole.chunk(size)[rank]]


def reduce_scatter(group):
    parts = [values((4,), 9 + r) for r in range(size)]
    if group is gloo:
        return own_part(torch.cat(parts), group)
    output = torch.empty(4)
    dist.reduce_scatter(output, parts, group=group)
    return [output]


def reduce_scatter_single(group):
    whole = values((3 * size,), 10)
    if group is gloo:
        return own_part(whole, group)
    output = torch.empty(3)
    dist.reduce_scatter_tensor(output, whole, group=group)
    return [output]


def reduce(group):
    x = values((3,), 11)
    dist.reduce(x, 0, group=group)
    return [x] if rank == 0 else []


def gather(group):
    outputs = [torch.empty(2) for _ in range(size)] if rank == 1 else None
    dist.gather(values((2,), 12), outputs, 1, group=group)
    return outputs or []


def scatter(group):
    output = torch.empty(2)
    dist.scatter(
        output, [values((2,), 13 + r) for r in range(size)] if rank == 1 else None, 1, group=group
    )
    return [output]


def all_to_all_single(group):
    output = torch.empty(2 * size)
    dist.all_to_all_single(output, values((2 * size,), 14), group=group)
    return [output]


def all_to_all_uneven(group):
    splits = [r + rank for r in range(size)]
    output = torch.empty(sum(splits), 2)
    dist.all_to_all_single(output, values((sum(splits), 2), 15), splits, splits, group=group)
    return [output]


def objects(group):
    everything = [None] * size
    dist.all_gather_object(everything, {"rank": rank, "text": "x" * (10 + rank)}, group=group)
    assert [each["rank"] for each in everything] == list(range(size))
    several = [rank, "a"]
    dist.broadcast_object_list(several, 0, group=group)
    assert several == [0, "a"]
    return []


def messages(group):
    to, origin = (rank + 1) % size, (rank - 1) % size
    received = torch.empty(3)
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, values((3,), 16), to, group),
            dist.P2POp(dist.irecv, received, origin, group),
        ]
    )
    for work in works:
        work.wait()
    if rank == 0:
        dist.send(torch.ones(2) * 7, 1, group, tag=3)
    if rank == 1:
        tagged = torch.empty(2)
        assert dist.recv(tagged, 0, group, tag=3) == 0
        assert tagged.tolist() == [7, 7]
    return [received]


for operation in (
    strided,
    complex_sum,
    broadcast,
    gather_all,
    gather_bool,
    gather_single,
    reduce_scatter,
    reduce_scatter_single,
    reduce,
    gather,
    scatter,
    all_to_all_single,
    all_to_all_uneven,
    objects,
    messages,
):
    both(operation)

# Lists of tensors for alltoall, which gloo lacks.
received = [torch.empty(r + 1) for r in range(size)]
dist.all_to_all(received, [torch.full((rank + 1,), float(rank)) for _ in range(size)])
assert [each.tolist() for each in received] == [[float(r)] * (r + 1) for r in range(size)]

# Messages from any rank, each once, in the order of their senders.
if rank == 0:
    seen = []
    for _ in range(2 * (size - 1)):
        letter = torch.empty(2)
        seen.append((dist.recv(letter, tag=5), *letter.tolist()))
        assert seen[-1][0] == seen[-1][1]
    assert sorted(seen) == [(r, r, n) for r in range(1, size) for n in (0, 1)]
else:
    for number in range(2):
        dist.send(torch.tensor([float(rank), float(number)]), 0, tag=5)

# What runs when a future completes may wait for further operations.
first = dist.all_reduce(torch.ones(3), async_op=True).get_future()
second = first.then(
    lambda done: dist.all_reduce(done.value()[0], async_op=True).get_future().wait()[0]
)
assert second.wait().tolist() == [size**2] * 3

# Asynchronous work, more of one kind than there are names, and futures.
many = [values((7,), 20 + index) for index in range(20)]
expected = [each.clone() for each in many]
works = [dist.all_reduce(each, async_op=True) for each in many]
futures = [work.get_future().then(lambda done: done.value()[0].sum()) for work in works]
for each in expected:
    dist.all_reduce(each, group=gloo)
assert [future.wait().item() for future in futures] == [each.sum().item() for each in expected]
assert all(work.is_completed() and work.is_success() for work in works)
assert all(torch.equal(a, b) for a, b in zip(many, expected, strict=True))

# Sub-groups, one for each half and one with all ranks.
for half in (list(range(size // 2)) or [0], list(range(size // 2, size)), list(range(size))):
    group = dist.new_group(half, backend="rabit")
    if rank in half:
        x = torch.tensor([float(rank)])
        dist.all_reduce(x, group=group)
        assert x.item() == sum(half), (half, x)
        dist.broadcast(x, half[-1], group=group)
local = dist.new_group([rank], backend="rabit", use_local_synchronization=True)
x = torch.ones(2)
dist.all_reduce(x, group=local)
assert x.tolist() == [1, 1]

# Functional collectives, which DTensor uses.
import torch.distributed._functional_collectives as functional  # noqa: E402

assert functional.all_reduce(torch.ones(2), "sum", dist.group.WORLD).tolist() == [size] * 2
gathered = functional.all_gather_tensor(torch.full((1, 2), float(rank)), 0, dist.group.WORLD)
assert gathered[:, 0].tolist() == list(range(size))
scattered = functional.reduce_scatter_tensor(torch.ones(size, 2), "sum", 0, dist.group.WORLD)
assert scattered.tolist() == [[size, size]]

with dist._coalescing_manager(group=None, device=torch.device("cpu"), async_ops=True) as manager:
    x, y = torch.ones(2), torch.ones(2) * 2
    dist.all_reduce(x)
    dist.all_reduce(y)
manager.wait()
assert (x.tolist(), y.tolist()) == ([size] * 2, [2 * size] * 2)

dist.barrier()
rabit_torch.distributed.monitored_barrier()
try:
    rabit_torch.distributed.monitored_barrier(timeout=1)
    raise SystemExit("torch takes no integer for a timeout")
except TypeError as error:
    assert "timeout is 1. Pass a datetime.timedelta" in str(error), error
rabit_torch.distributed.monitored_barrier(timeout=30.0)
dist.all_reduce(torch.ones(2), async_op=True).wait(30.0)
try:
    if rank != size - 1:
        rabit_torch.distributed.monitored_barrier(timeout=timedelta(seconds=1))
        raise SystemExit("the barrier let ranks pass while one was missing")
except rabit_torch.TimedOut as error:
    assert f"rank {size - 1} did not reach it" in str(error), error
dist.barrier()

# Over a store in a file too, and without any patience.
folder = [tempfile.mkdtemp() if rank == 0 else None]
dist.broadcast_object_list(folder, 0)
alone = MonitoredBarrier(dist.FileStore(f"{folder[0]}/store", size), rank, size)
alone.run(30.0, False)
if rank == 0:
    began = time.monotonic()
    try:
        alone.run(0.0, True)
        raise SystemExit("the barrier let rank 0 pass alone")
    except rabit_torch.TimedOut as error:
        assert f"rank {', '.join(map(str, range(1, size)))} did not reach" in str(error), error
    try:
        rabit_torch.distributed.monitored_barrier(timeout=timedelta(0))
        raise SystemExit("the barrier of the group let rank 0 pass alone")
    except rabit_torch.TimedOut as error:
        assert "rank 1 did not reach it in 0 s" in str(error), error
    assert time.monotonic() - began < 10
dist.barrier()

try:
    dist.all_reduce(torch.ones(2), dist.ReduceOp.SUM if rank else dist.ReduceOp.MAX)
    raise SystemExit("different operations were not noticed")
except rabit_torch.RabitError as error:
    text = str(error)
dist.destroy_process_group()
for _ in range(3):  # the same keys of the same store each time
    dist.init_process_group("rabit")
    dist.barrier()
    dist.destroy_process_group()
print(f"done {rank} {os.getpid()}", flush=True)
