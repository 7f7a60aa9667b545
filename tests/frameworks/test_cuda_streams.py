"""Torch waits on streams: the host continues while the emulated device has still to work."""

from __future__ import annotations

import pytest
from support import emulated_cuda

pytestmark = pytest.mark.skipif(bool(emulated_cuda.MISSING), reason=emulated_cuda.MISSING)

# Kernels that wait for `gate`, and what came back while it was closed.
GATE = """
import threading
gate = threading.Event()
"""


def test_with_nccl_nothing_waits_for_kernels(on_devices):
    """Neither the call nor synchronize, for more tensors than a lane has in the air."""
    results = on_devices(
        2,
        GATE
        + """
from rabit._native import load_calls
tensors = [on_device(torch.full((1000,), float(i + rank)), rank) for i in range(12)]
for each in tensors:  # the communicator is there
    rabit.allreduce_(each, op=rabit.Sum, name="first")
driver.launch(rank, gate.wait)
for step in range(2):  # the second goes through the extension module
    handles = [
        rabit.allreduce_async_(each, op=rabit.Sum, name=f"t{i}") for i, each in enumerate(tensors)
    ]
    for handle in handles:
        rabit.synchronize(handle)
rabit.allreduce_(tensors[0], op=rabit.Sum, name="blocking")
rabit.allreduce_(tensors[0], op=rabit.Sum, name="blocking")
was_done = [rabit.poll(handle) for handle in handles]
is_closed = not gate.is_set()
rabit.barrier()  # the other rank has come as far
gate.set()
report([is_closed, [each.cpu()[0].item() for each in tensors]])
""",
        "nccl",
    )

    sums = [(2.0 * i + 1) * 4 for i in range(12)]
    sums[0] *= 4
    assert results == [[True, sums]] * 2


def test_staged_nothing_waits_for_copies_back(on_devices):
    results = on_devices(
        2,
        """
import torch.distributed as dist
import rabit_torch.distributed
dist.init_process_group("cpu:rabit,cuda:rabit", init_method="env://", rank=rank, world_size=size)
mine = on_device(torch.full((1000,), float(rank + 1)), rank)
parameter = torch.nn.Parameter(on_device(torch.zeros(35_000), rank))
optimizer = rabit.DistributedOptimizer(
    torch.optim.SGD([parameter], lr=1.0), named_parameters=[("weight", parameter)]
)
driver.hold(True)
work = dist.group.WORLD.allreduce([mine], dist.AllreduceOptions())
other = on_device(torch.full((1000,), float(rank)), rank)
handle = rabit.allreduce_async_(other, op=rabit.Sum, name="other")
(parameter * on_device(torch.full((35_000,), float(rank)), rank)).sum().backward()
# From the first wait on, here at the end of the backward pass, what comes to the stream is behind a copy.
work.wait()
was_completed = work.is_completed()
rabit.synchronize(handle)
optimizer.synchronize()
rabit.barrier()
driver.hold(False)
report([
    was_completed, mine.cpu()[-1].item(), other.cpu()[-1].item(), parameter.grad.cpu()[-1].item()
])
""",
    )

    assert results == [[False, 3.0, 1.0, 0.5]] * 2


def test_a_wait_uses_the_stream_of_the_moment(on_devices):
    """Also of a handle that was waited for on another stream before."""
    results = on_devices(
        2,
        """
import ctypes
stream = ctypes.c_void_p()
driver.push_device(rank)
assert driver.library.cuStreamCreate(ctypes.byref(stream), 1) == 0
mine = on_device(torch.full((1000,), float(rank)), rank)
driver.hold(True)
handle = rabit.allreduce_async_(mine, op=rabit.Sum, name="x")
waits = driver.calls("cuStreamWaitEvent")
(engine_handle,) = handle.engine_handles
engine_handle.wait()
cuda_tensor.current = cuda_tensor._Stream(stream.value)
engine_handle.wait()
added = driver.calls("cuStreamWaitEvent") - waits
rabit.barrier()
driver.hold(False)
engine_handle.wait_done()
engine_handle.wait()  # there is nothing left to wait for
report([added, driver.calls("cuStreamWaitEvent") - waits, mine.cpu()[0].item()])
""",
    )

    assert results == [[2, 2, 1.0]] * 2


def test_an_error_after_the_wait_is_raised_by_the_next_call(on_devices):
    results = on_devices(
        2,
        GATE
        + """
mine = on_device(torch.ones(1000), rank)
rabit.allreduce_(mine, name="first")
if rank == 1:
    driver.launch(rank, gate.wait)  # it never gets to its part
handle = rabit.allreduce_async_(mine, name="second")
rabit.synchronize(handle)
rabit.barrier()
if rank == 1:
    report("")
    os._exit(0)
driver.finish(rank)  # no stream waits for ever
try:
    rabit.allreduce_(mine, name="third")
    report("no error")
except rabit.RabitError as error:
    report(f"{type(error).__name__}: {error}")
os._exit(0)
""",
        "nccl",
    )

    assert results[0].startswith("PeerLost: ") and "rank 1" in results[0]


@pytest.mark.parametrize("count", [5, 100_000], ids=["packed", "alone"])
def test_a_gradient_is_sent_after_the_stream_that_computes_it(on_devices, count):
    """What sends it runs on the stream of the gradient that comes last, or that fills the queue."""
    results = on_devices(
        2,
        f"count = {count}"
        + """
import ctypes, time
late = torch.nn.Parameter(on_device(torch.zeros(count)))
last = torch.nn.Parameter(on_device(torch.zeros(2 * count)))
streams = {late: cuda_tensor.new_stream(), last: cuda_tensor.new_stream()}

def compute(parameter):
    def kernel():
        if parameter is late:
            time.sleep(0.3)
        size = 4 * parameter.numel()
        ctypes.memmove(grad.inside.data_ptr(), values.data_ptr(), size)
    grad, values = parameter.grad, torch.full(parameter.shape, float(rank + 1))
    cuda_tensor.current = streams[parameter]
    driver.launch(0, kernel, streams[parameter].cuda_stream)

for parameter in (late, last):
    parameter.register_post_accumulate_grad_hook(compute)
optimizer = rabit.DistributedOptimizer(
    torch.optim.SGD([last, late], lr=1.0), named_parameters=[("last", last), ("late", late)]
)
def go_on(parameter):  # Operations here would wait for the stream of `late` otherwise.
    cuda_tensor.current = streams[last]

late.register_post_accumulate_grad_hook(go_on)
# The forward pass of `late` is the later one, so that its gradient comes first.
((last * 0).sum() + (late * 0).sum()).backward()
optimizer.synchronize()
driver.finish(0, streams[last].cuda_stream)
report([each.grad.cpu().unique().tolist() for each in (late, last)])
""",
    )

    assert results == [[[1.5], [1.5]]] * 2


def test_memory_that_is_copied_from_last_waits_for_the_copy(on_devices):
    """torch would give it to the next of the stream that it was made on."""
    results = on_devices(
        2,
        """
import torch.distributed as dist
import rabit_torch.distributed
dist.init_process_group("cpu:rabit,cuda:rabit", init_method="env://", rank=rank, world_size=size)
strided = on_device(torch.arange(24.0).reshape(4, 6))[:, ::2]
dense = on_device(torch.ones(4))
parameter = torch.nn.Parameter(on_device(torch.zeros(3, 4)))
parameter.grad = on_device(torch.ones(4, 3).t())
optimizer = rabit.DistributedOptimizer(torch.optim.SGD([parameter], lr=1.0))
compressed = torch.nn.Parameter(on_device(torch.zeros(4)))
compressed.grad = on_device(torch.ones(4))

class Halves:
    def compress(tensor):
        return tensor.half(), None
    def decompress(tensor, context):
        return tensor.float()

compressing = rabit.DistributedOptimizer(
    torch.optim.SGD([compressed], lr=1.0), compression=Halves
)

def message():
    if rank == 0:
        rabit.send(dense, 1, "message")
    else:
        rabit.recv(strided[:, 0], 0, "message")

calls = [
    lambda: rabit.allreduce_(dense, name="dense"),
    lambda: rabit.allreduce_(strided, name="strided"),
    lambda: rabit.broadcast_(strided, 0, name="strided"),
    lambda: dist.group.WORLD.allreduce([strided], dist.AllreduceOptions()).wait(),
    optimizer.synchronize,
    compressing.synchronize,  # what travelled, and what it becomes
    message,
]
found = []
for call in calls:
    del cuda_tensor.recorded[:]
    call()
    found.append([stream is cuda_tensor.current for _, stream in cuda_tensor.recorded])
report(found)
dist.destroy_process_group()
""",
    )

    both = [[], *[[True]] * 4, [True, True]]
    assert results == [[*both, []], [*both, [True]]]
