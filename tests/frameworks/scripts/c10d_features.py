"""What torch builds on process groups, on backend rabit.  Run under torchrun with two ranks."""

import os
import tempfile
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import checkpoint, fsdp
from torch.distributed._shard import sharded_tensor
from torch.distributed._shard.sharding_spec import ChunkShardingSpec
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    set_model_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

import rabit_torch.distributed  # noqa: F401

try:
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
except ImportError:  # before torch 2.5
    from torch.distributed._tensor import DTensor, Replicate, Shard, distribute_tensor

warnings.simplefilter("ignore")
torch.set_num_threads(1)
dist.init_process_group("rabit")
rank, size = dist.get_rank(), dist.get_world_size()
mesh = init_device_mesh("cpu", (size,))
shared = [tempfile.mkdtemp() if rank == 0 else None]
dist.broadcast_object_list(shared, 0)


def network(seed=1):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def sharded(model):
    for layer in model:
        if isinstance(layer, nn.Linear):
            fsdp.fully_shard(layer, mesh=mesh)
    return fsdp.fully_shard(model, mesh=mesh)


def full(model):
    return [p.full_tensor() if isinstance(p, DTensor) else p.detach() for p in model.parameters()]


def assert_equal(found, expected, what):
    for mine, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, wanted, msg=what, rtol=1e-5, atol=1e-6)


def devices():
    usable = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    assert dist.distributed_c10d._get_pg_default_device() == torch.device("cpu")
    if hasattr(dist.distributed_c10d, "_device_capability"):  # since torch 2.5
        assert sorted(dist.distributed_c10d._device_capability()) == usable
    assert sorted(dist.BackendConfig(dist.Backend("rabit")).get_device_backend_map()) == usable
    split = sharded_tensor.ones(ChunkShardingSpec(0, [f"rank:{rank}/cpu" for rank in range(size)]), 4, 3)
    whole = torch.zeros(4, 3) if rank == 0 else None
    split.gather(0, whole)  # on the device that the group names
    assert rank != 0 or whole.tolist() == torch.ones(4, 3).tolist()


def state_from_rank_0():
    model = sharded(network(seed=2))
    wanted = network(seed=3)
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(model, wanted.state_dict() if rank == 0 else {}, options=options)
    assert_equal(full(model), [p.detach() for p in wanted.parameters()], "broadcast_from_rank0")


def checkpoints():
    model = sharded(network(seed=4))
    wanted = [each.detach().clone() for each in full(model)]
    for name, save in (("now", checkpoint.save), ("later", checkpoint.async_save)):
        folder = f"{shared[0]}/{name}"
        pending = save({"model": get_model_state_dict(model)}, checkpoint_id=folder)
        if name == "later":
            pending.result(timeout=60)
            dist.barrier()
        other = sharded(network(seed=5))
        state = {"model": get_model_state_dict(other)}
        checkpoint.load(state, checkpoint_id=folder)
        set_model_state_dict(other, state["model"])
        assert_equal(full(other), wanted, f"checkpoint {name}")


def tensors():
    whole = torch.arange(24.0).reshape(6, 4)
    split = distribute_tensor(whole, mesh, [Shard(0)])
    assert torch.equal(split.redistribute(mesh, [Shard(1)]).full_tensor(), whole)
    product = split @ distribute_tensor(torch.ones(4, 2), mesh, [Replicate()])
    assert torch.equal(product.full_tensor(), whole @ torch.ones(4, 2))
    assert split.sum().full_tensor().item() == whole.sum().item()


def tensor_parallel():
    alone, inputs = network(), torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
    expected = alone(inputs)
    expected.sum().backward()
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    parallel = parallelize_module(network(), mesh, plan)
    found = parallel(inputs)
    found.sum().backward()
    assert_equal([found], [expected], "tensor parallel")
    gradients = [p.grad.full_tensor() for p in parallel.parameters()]
    assert_equal(gradients, [p.grad for p in alone.parameters()], "gradients of tensor parallel")


def pipeline():
    model, inputs = network(), torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
    expected = model(inputs)
    parts = nn.Sequential(model[0], model[1]), nn.Sequential(model[2])
    example = (inputs[:2] if rank == 0 else parts[0](inputs[:2]).detach(),)  # torch 2.4 asks for it
    stage = PipelineStage(parts[rank], rank, size, torch.device("cpu"), input_args=example)
    schedule = ScheduleGPipe(stage, n_microbatches=2, loss_fn=lambda output, _: output.sum())
    if rank == 0:
        schedule.step(inputs)
    else:
        output = schedule.step(target=torch.zeros(4, 4))
        assert_equal([output], [expected], "pipeline")
    assert all(p.grad is not None for p in parts[rank].parameters())


def fsdp_1():
    model = FullyShardedDataParallel(network(), device_id=torch.device("cpu"))
    twin = network()
    inputs = torch.ones(2, 8)
    for each in (model, twin):
        optimizer = torch.optim.SGD(each.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            each(inputs).sum().backward()
            optimizer.step()
    with FullyShardedDataParallel.summon_full_params(model):
        found = [p.detach().clone() for p in model.parameters()]
    assert_equal(found, [p.detach() for p in twin.parameters()], "FSDP1")


cases = [devices, tensors, tensor_parallel, fsdp_1, pipeline]
if hasattr(fsdp, "fully_shard"):  # before torch 2.6 FSDP2 is for CUDA alone
    cases += [state_from_rank_0, checkpoints]
for case in cases:
    case()
    dist.barrier()
dist.destroy_process_group()
print(f"done {rank} {os.getpid()}", flush=True)
