"""Torch tensors of CUDA, over the emulated driver: memory that the host cannot touch.

Streams, events and copies are those of the emulation; torch itself is the build for the CPU, and its
operations on these tensors run at once.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support import emulated_cuda

pytestmark = pytest.mark.skipif(bool(emulated_cuda.MISSING), reason=emulated_cuda.MISSING)

TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize("backend", ["builtin", "nccl"])
def test_every_collective_takes_tensors_of_a_device(on_devices, backend):
    results = on_devices(
        2,
        """
mine = on_device(torch.arange(4.0) + rank, rank)
found = {}
found["allreduce"] = rabit.allreduce(mine, op=rabit.Sum)
found["average_"] = rabit.allreduce_(mine.clone())
found["fp16"] = rabit.allreduce(mine, compression=rabit.Compression.fp16)
found["grouped"] = rabit.grouped_allreduce([mine, mine * 2], op=rabit.Max)[1]
found["allgather"] = rabit.allgather(mine[: rank + 1])
found["reducescatter"] = rabit.reducescatter(mine, op=rabit.Sum)
found["alltoall"] = rabit.alltoall(mine)
found["splits"], rows = rabit.alltoall(mine, [1, 3] if rank == 0 else [2, 2])
found["broadcast"] = rabit.broadcast(mine, 1)
found["reduce"] = rabit.reduce(mine, 0)
found["gather"] = rabit.gather(mine[:1], 1)
found["scatter"] = rabit.scatter(mine, 0)
found["nothing"] = rabit.allreduce(mine[:0])
found["uneven"] = rabit.allgather(mine[:rank])
found["scalar"] = rabit.allreduce(mine.sum(), op=rabit.Sum)
found["bfloat16"] = rabit.allgather(mine.to(torch.bfloat16))
if rank == 0:
    rabit.send(mine, 1, "message")
else:
    found["recv"] = rabit.recv(on_device(torch.zeros(4), rank), 0, "message")
answers = {}
for name, each in found.items():
    if each is not None:
        assert each.is_cuda and each.device.index == rank, (name, each)
        answers[name] = each.cpu().tolist()
report([answers, rows.tolist()])
""",
        backend,
    )

    both = {
        "allreduce": [1, 3, 5, 7],
        "average_": [0.5, 1.5, 2.5, 3.5],
        "fp16": [0.5, 1.5, 2.5, 3.5],
        "grouped": [2, 4, 6, 8],
        "allgather": [0, 1, 2],
        "broadcast": [1, 2, 3, 4],
        "nothing": [],
        "uneven": [1],
        "scalar": 16,
        "bfloat16": [0, 1, 2, 3, 1, 2, 3, 4],
    }
    (zero, zero_rows), (one, one_rows) = results
    for name, wanted in both.items():
        assert zero[name] == one[name] == wanted, name
    assert (zero["reducescatter"], one["reducescatter"]) == ([1, 3], [5, 7])
    assert (zero["alltoall"], one["alltoall"]) == ([0, 1, 1, 2], [2, 3, 3, 4])
    assert (zero["splits"], one["splits"]) == ([0, 1, 2], [1, 2, 3, 3, 4])
    assert (zero_rows, one_rows) == ([1, 2], [3, 2])
    assert (zero["reduce"], "reduce" in one) == ([0.5, 1.5, 2.5, 3.5], False)
    assert ("gather" in zero, one["gather"]) == (False, [0, 1])
    assert (zero["scatter"], one["scatter"]) == ([0, 1], [2, 3])
    assert one["recv"] == [0, 1, 2, 3]


def test_a_call_that_comes_again_gives_the_stream_of_the_moment(on_devices):
    """The first call goes through cffi, the others through the extension module's DLPack."""
    results = on_devices(
        2,
        """
import ctypes
from rabit._native import load_calls
driver.library.rabit_emulated_delays(rank + 1, 300)
asked, wrong = cuda_tensor.asked_for_stream, []
tensor = on_device(torch.zeros(1000))
view = (ctypes.c_float * 1000).from_address(tensor.inside.data_ptr())
for step in range(20):
    def kernel(value=float(step + rank)):
        for i in range(1000):
            view[i] = value
    driver.launch(0, kernel)  # It is late: the collective has to wait for it.
    rabit.allreduce_(tensor, name="again", op=rabit.Sum)
    if tensor.cpu().tolist() != [2.0 * step + 1] * 1000:
        wrong.append([step, tensor.cpu()[:3].tolist()])
report([wrong, cuda_tensor.asked_for_stream - asked if load_calls() else 19])
""",
    )

    assert results == [[[], 19]] * 2


@pytest.mark.parametrize("backend", ["builtin", "nccl"])
def test_training_on_a_device_is_training_on_the_host(on_devices, backend):
    """With small parameters in packs and large ones alone, overlapped and not, bit for bit."""
    results = on_devices(
        2,
        """
def train(is_on_device, **options):
    torch.manual_seed(7)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 300), torch.nn.ReLU(), torch.nn.Linear(300, 300), torch.nn.Linear(300, 2)
    )
    if is_on_device:
        to_device(model, rank)
    if rank:
        with torch.no_grad():
            for each in model.parameters():
                each.zero_()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = rabit.DistributedOptimizer(
        optimizer, named_parameters=model.named_parameters(), **options
    )
    rabit.broadcast_parameters(model.state_dict(), root_rank=0)
    generator = torch.Generator().manual_seed(rank)
    for step in range(4):
        batch = torch.randn(16, 8, generator=generator)
        batch = on_device(batch, rank) if is_on_device else batch
        optimizer.zero_grad()
        model(batch).pow(2).mean().backward()
        optimizer.step()
    rabit.broadcast_optimizer_state(optimizer, 0)
    optimizer.zero_grad()
    return [each.detach().cpu() for each in model.parameters()]


wrong = []
for options in ({}, {"overlap": "reduce-scatter"}, {"strategy": "powersgd"}, {"compression": rabit.Compression.fp16}):
    there, here = train(True, **options), train(False, **options)
    same = [torch.equal(a, b) for a, b in zip(there, here)]
    if not all(same) or any(bool(a.isnan().any()) for a in there):
        wrong.append([str(options), same])
report(wrong)
""",
        backend,
    )

    assert results == [[]] * 2


def test_errors_name_the_tensor_the_ranks_and_what_to_do(on_devices):
    results = on_devices(
        2,
        """
texts = {}


def fails(name, call):
    try:
        call()
        texts[name] = "no error"
    except rabit.RabitError as error:
        texts[name] = f"{type(error).__name__}: {error}"


here, there = torch.ones(4), on_device(torch.ones(4))
fails("mixed", lambda: rabit.allreduce(here if rank else there, name="mixed"))
fails("group", lambda: rabit.grouped_allreduce([there, here], name="group"))
fails("ordered", lambda: rabit.ordered_allreduce_(there))
rabit.barrier()
driver.capture(True)
fails("graph", lambda: rabit.allreduce_(there, name="graph"))
driver.capture(False)
rabit.barrier()
report(texts)
""",
    )

    for rank, texts in enumerate(results):
        assert "Mismatch" in texts["mixed"] and "'allreduce.mixed'" in texts["mixed"]
        assert "kind of device" in texts["mixed"]
        assert texts["group"] == "no error"
        assert (
            "Unsupported" in texts["ordered"] and "not in the memory of the CPU" in texts["ordered"]
        )
        assert "Unsupported" in texts["graph"] and "outside of the capture" in texts["graph"]
        assert f"on rank {rank}" in texts["graph"]


def test_a_device_without_memory_ends_the_job_with_the_call(on_devices):
    results = on_devices(
        2,
        """
if rank == 1:
    driver.fail("cuMemHostAlloc", 2)
try:
    rabit.allreduce_(on_device(torch.ones(100)), name="large")
    report("no error")
except rabit.RabitError as error:
    report(f"{type(error).__name__}: {error}")
wait_for_all()
os._exit(0)  # The job has ended with the error; shutdown() would raise it again.
""",
    )

    for text in results:
        assert "cuMemHostAlloc on CUDA device 0 failed: CUDA_ERROR_OUT_OF_MEMORY" in text
        assert "'allreduce.large' on rank 1" in text
        assert "lower partition_bytes" in text


def test_without_a_driver_a_tensor_of_a_device_is_refused_with_advice(on_ranks):
    results = on_ranks(
        1,
        """
import rabit as core


class OnDevice:
    def __dlpack_device__(self):
        return (2, 0)

    def __dlpack__(self, stream=None):
        return torch.ones(4).__dlpack__()


try:
    core.allreduce(OnDevice(), name="x")
    report("no error")
except rabit.RabitError as error:
    report(f"{type(error).__name__}: {error}")
""",
    )

    assert "the tensor is on cuda:0, which cannot be reached" in results[0]
    assert "libcuda.so.1" in results[0] and "install it" in results[0]


def test_the_driver_is_shown_with_its_path_and_version(tmp_path):
    (tmp_path / "libcuda.so.1").symlink_to(emulated_cuda.build())
    code = (
        "from rabit.diagnostics import check_build; "
        "[print(*vars(each).values()) for each in check_build.findings() if each.section == 'Devices']"
    )
    told = {}
    for folder in (str(tmp_path), ""):
        environment = {**os.environ, "LD_LIBRARY_PATH": folder}
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            capture_output=True,
            text=True,
            timeout=100,
            check=True,
        )
        told[folder] = done.stdout

    assert "Devices CUDA driver True libcuda.so.1, CUDA 12.8, 2 devices" in told[str(tmp_path)]
    if not shutil.which("nvidia-smi"):
        assert "Devices CUDA driver False" in told[""] and "docker run --gpus all" in told[""]


def test_ranks_of_a_host_divide_its_devices(on_ranks):
    results = on_ranks(
        3,
        """
found = [str(rabit.local_device())]
torch.cuda.is_available = lambda: True
for count in (4, 2, 1):
    torch.cuda.device_count = lambda: count
    found.append(str(rabit.local_device()))
report(found)
""",
    )

    for rank, (_, *found) in enumerate(results):
        assert found == [f"cuda:{rank}", f"cuda:{rank % 2}", "cuda:0"]
    if not torch.cuda.is_available():
        assert all(found[0] == "cpu" for found in results)


@pytest.mark.parametrize("backend", ["builtin", "nccl"])
def test_torch_distributed_takes_tensors_of_a_device(on_devices, backend):
    results = on_devices(
        2,
        """
import torch.distributed as dist
import rabit_torch.distributed
dist.init_process_group(
    "cpu:rabit,cuda:rabit", init_method="env://", rank=rank, world_size=size
)
group = dist.group.WORLD
os.environ["NCCL_HOSTID"] = f"host{rank}"  # each process has devices of its own
mine = on_device(torch.arange(4.0) + rank)
found = {}
options = dist.AllreduceOptions()
group.allreduce([mine], options).wait()
found["all_reduce"] = mine
whole = on_device(torch.zeros(8))
group.all_gather_single(whole, mine).wait()
found["all_gather"] = whole
part = on_device(torch.zeros(2))
group.reduce_scatter_single(part, mine).wait()
found["reduce_scatter"] = part
swapped = on_device(torch.zeros(4))
group.all_to_all_single(swapped, mine, [], []).wait()
found["all_to_all"] = swapped
lists = [[on_device(torch.zeros(4)) for _ in range(size)]]
group.allgather(lists, [mine]).wait()
found["list"] = lists[0][1]
root = dist.BroadcastOptions()
root.rootRank = 1
sent = on_device(torch.full((3,), float(rank)))
group.broadcast([sent], root).wait()
found["broadcast"] = sent
report({name: [each.is_cuda, each.cpu().tolist()] for name, each in found.items()})
dist.destroy_process_group()
""",
        backend,
    )

    sums = [1.0, 3.0, 5.0, 7.0]
    for rank, found in enumerate(results):
        assert found["all_reduce"] == [True, sums]
        assert found["all_gather"] == [True, sums + sums]
        assert found["reduce_scatter"] == [True, [[2.0, 6.0], [10.0, 14.0]][rank]]
        assert found["all_to_all"] == [True, [[1.0, 3.0] * 2, [5.0, 7.0] * 2][rank]]
        assert found["list"] == [True, sums]
        assert found["broadcast"] == [True, [1.0] * 3]


def test_the_numpy_package_reads_tensors_of_every_device_on_the_stream_of_the_moment(on_devices):
    """torch's __dlpack__ refuses those of a device that is not current, and puts an event on the stream."""
    results = on_devices(
        2,
        """
import rabit as core
cuda_tensor.Cuda.__dlpack_device__ = lambda self: (2, self.device.index)
def refuse(*_, **__):
    raise BufferError("Can't export tensors on a different CUDA device index.")
cuda_tensor.Cuda.__dlpack__ = refuse
mine = on_device(torch.full((1000,), 1.0 + rank), 1)
cuda_tensor.current = cuda_tensor.new_stream(1)
asked = cuda_tensor.asked_for_stream
core.allreduce_(mine, op=core.Sum, name="first")
had_asked = cuda_tensor.asked_for_stream > asked
try:
    core.allreduce_(on_device(torch.ones(3), 1).requires_grad_(), name="with gradient")
except core.InvalidArgument as error:
    refused = str(error)
report([had_asked, mine.cpu().unique().tolist(), "requires gradient" in refused])
""",
    )

    assert results == [[True, [3.0], True]] * 2
