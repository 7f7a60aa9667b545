"""What Horovod scripts rely on beyond arithmetic; one function for each behaviour.

Every rank writes {behaviour: "ok" or what went wrong} to argv[1]/rank.N.json.
"""

import json
import os
import signal
import sys
import time
import traceback
import warnings
from pathlib import Path

import torch
from torch import nn

import rabit
import rabit_torch as hvd

FOLDER = Path(sys.argv[1])
torch.set_num_threads(1)


def fails(error, function, *words):
    try:
        function()
    except error as found:
        assert all(word in str(found) for word in words), str(found)
    else:
        raise AssertionError(f"no {error.__name__}")


def environment_is_read_at_init():
    os.environ["HOROVOD_TIMELINE"] = "DYNAMIC"
    os.environ["HOROVOD_DYNAMIC_PROCESS_SETS"] = "1"
    static = hvd.ProcessSet(range(hvd_size() - 1))
    hvd.init(process_sets=[static])
    assert not Path("DYNAMIC").exists()
    assert static.process_set_id is not None and static.size() == hvd.size() - 1
    assert static.included() == (hvd.rank() < hvd.size() - 1)
    if static.included():
        assert (
            hvd.allreduce(torch.ones(2), op=hvd.Sum, process_set=static).tolist()
            == [static.size()] * 2
        )


def hvd_size():
    return int(
        os.environ.get("RABIT_SIZE")
        or os.environ.get("OMPI_COMM_WORLD_SIZE")
        or os.environ["WORLD_SIZE"]
    )


def init_again_keeps_the_engine():
    engine = rabit.default_engine()
    hvd.init()
    assert rabit.default_engine() is engine


def a_name_in_flight_is_refused_at_once_and_the_first_completes():
    last = hvd.size() - 1
    if hvd.rank() != last:
        handle = hvd.allreduce_async(torch.ones(3), name="twice", op=hvd.Sum)
        fails(ValueError, lambda: hvd.allreduce_async(torch.ones(3), name="twice"), "twice")
    hvd.barrier()
    if hvd.rank() == last:
        handle = hvd.allreduce_async(torch.ones(3), name="twice", op=hvd.Sum)
    assert hvd.synchronize(handle).tolist() == [hvd.size()] * 3


def disagreements_raise_and_the_library_stays_usable():
    odd = hvd.rank() == hvd.size() - 1
    cases = {
        "shape": lambda: hvd.allreduce_async(torch.ones(4 if odd else 3), name="bad"),
        "type": lambda: hvd.allreduce_async(
            torch.ones(3, dtype=torch.float64 if odd else torch.float32), name="bad"
        ),
        "operation": lambda: hvd.allreduce_async(
            torch.ones(3), name="bad", op=hvd.Max if odd else hvd.Sum
        ),
        "root": lambda: hvd.broadcast_async(torch.ones(3), int(odd), name="bad"),
        "rest": lambda: hvd.allgather_async(torch.ones(2, 4 if odd else 3), name="bad"),
        "prescale": lambda: hvd.allreduce_async(
            torch.ones(3), name="bad", prescale_factor=2.0 if odd else 1.0
        ),
    }
    for what, start in cases.items():
        handle = start()
        fails(hvd.HorovodInternalError, lambda handle=handle: hvd.synchronize(handle), "bad")
        assert hvd.allreduce(torch.ones(2), op=hvd.Sum, name="good").tolist() == [hvd.size()] * 2, (
            what
        )


def bad_arguments_are_refused():
    size = hvd.size()
    errors = (ValueError, RuntimeError, TypeError)
    fails(
        errors,
        lambda: hvd.alltoall(
            torch.ones(size), splits=torch.tensor([size + 1] * size), name="splits"
        ),
    )
    fails(errors, lambda: hvd.alltoall(torch.ones(size), splits=torch.ones(size), name="splits"))
    fails(errors, lambda: hvd.broadcast(torch.ones(2), size, name="root"))
    fails(errors, lambda: hvd.allreduce(torch.ones(2), average=True, op=hvd.Sum))
    fails(errors, lambda: hvd.reducescatter(torch.ones(4), op=hvd.Adasum), "Adasum")
    fails(errors, lambda: hvd.reducescatter(torch.tensor(1.0)))
    fails(errors, lambda: hvd.allreduce(torch.ones(2), op=9), "9")
    hvd.barrier()


def join_works_with_every_collective():
    size, rank = hvd.size(), hvd.rank()
    if rank > 0:
        rows = hvd.allgather(torch.full((2, 2), float(rank)), name="joined.gather")
        assert rows[:, 0].tolist() == [r for r in range(1, size) for _ in range(2)]
        assert (
            hvd.allreduce(torch.ones(3), op=hvd.Sum, name="joined.sum").tolist() == [size - 1] * 3
        )
        assert hvd.broadcast(
            torch.full((2,), float(rank)), 1, name="joined.broadcast"
        ).tolist() == [1, 1]
        part = hvd.reducescatter(torch.ones(size), op=hvd.Sum, name="joined.scatter")
        assert part.tolist() == [size - 1]
        received = hvd.alltoall(torch.full((size,), float(rank)), name="joined.alltoall")
        assert received.tolist() == [float(r) for r in range(1, size)]
    if rank == size - 1:  # A sum of this rank alone comes when all others have joined.
        assert hvd.allreduce(torch.ones(1), op=hvd.Sum, name="joined.others").item() == 1
    last = hvd.join()
    assert last == size - 1
    assert hvd.allgather(torch.tensor([last]), name="after.join").tolist() == [last] * size


def the_old_average_keyword_works():
    mine = torch.tensor([float(hvd.rank())])
    total = hvd.size() * (hvd.size() - 1) / 2
    assert hvd.allreduce(mine, average=False).item() == total
    assert hvd.allreduce(mine, average=True).item() == total / hvd.size()
    handle = hvd.allreduce_async_(mine, False, "in.place")
    assert hvd.synchronize(handle) is mine and mine.item() == total


def integers_and_half_precision_reduce_as_documented():
    size, rank = hvd.size(), hvd.rank()
    assert hvd.allreduce(
        torch.tensor([-1 if rank == 0 else 0, 2 * size - 1 if rank == 0 else 0])
    ).tolist() == [0, 1]
    large = torch.tensor([2**40 + rank])
    assert hvd.allreduce(large, op=hvd.Max).item() == 2**40 + size - 1
    assert hvd.allreduce(torch.tensor([3]), op=hvd.Sum, prescale_factor=0.5).item() in (
        size,
        int(1.5 * size),
    )
    half = torch.tensor([1.5, 100.0], dtype=torch.float16)
    assert hvd.allreduce(half, op=hvd.Sum, postscale_factor=0.5).tolist() == [
        0.75 * size,
        50.0 * size,
    ]
    for op, expected in (
        (hvd.Min, 1),
        (hvd.Max, size),
        (hvd.Product, torch.arange(1, size + 1).prod().item()),
    ):
        for dtype in (torch.int32, torch.float16, torch.bfloat16, torch.float64):
            assert hvd.allreduce(torch.tensor([rank + 1]).to(dtype), op=op).item() == expected


def every_dtype_and_layout_is_carried():
    size, rank = hvd.size(), hvd.rank()
    for dtype in (torch.bool, torch.uint8, torch.int8, torch.int16, torch.bfloat16, torch.float16):
        one = torch.ones(3).to(dtype)
        assert hvd.allgather(one).tolist() == one.repeat(size).tolist()
        assert hvd.broadcast(torch.zeros_like(one) if rank else one, 0).tolist() == one.tolist()
        assert hvd.alltoall(torch.ones(size).to(dtype)).dtype == dtype
        assert hvd.allreduce(one, op=hvd.Max).tolist() == one.tolist()
        hvd.reducescatter(torch.ones(size, 2).to(dtype), op=hvd.Sum)
    assert hvd.allgather(torch.tensor(float(rank))).tolist() == list(map(float, range(size)))
    assert hvd.broadcast(torch.tensor(float(rank)), 1).item() == 1
    assert hvd.allgather(torch.empty(0, 3)).shape == (0, 3)
    assert hvd.allreduce(torch.ones(4, 6).t()[::2], op=hvd.Sum).tolist() == [[float(size)] * 4] * 3
    first, second = hvd.grouped_allreduce(
        [torch.ones(2), torch.ones(3, dtype=torch.float64)], op=hvd.Sum
    )
    assert (first.tolist(), second.tolist()) == ([size] * 2, [size] * 3)
    assert [each.shape[0] for each in hvd.grouped_allgather([torch.ones(1), torch.ones(2)])] == [
        size,
        2 * size,
    ]


def poll_says_false_before_the_others_have_come():
    if hvd.rank() != hvd.size() - 1:
        handle = hvd.allreduce_async(torch.ones(4), name="late")
        assert hvd.poll(handle) is False
    hvd.barrier()
    if hvd.rank() == hvd.size() - 1:
        handle = hvd.allreduce_async(torch.ones(4), name="late")
    hvd.synchronize(handle)
    assert hvd.poll(handle) is True


def barriers_of_disjoint_sets_are_independent():
    half = hvd.size() // 2
    low, high = hvd.add_process_set(range(half)), hvd.add_process_set(range(half, hvd.size()))
    if low.included():
        if hvd.rank() == 0:  # The other set has passed its barrier before this one is complete.
            hvd.recv(torch.zeros(1), half, name="passed")
        hvd.barrier(process_set=low)
    else:
        hvd.barrier(process_set=high)
        if hvd.rank() == half:
            hvd.send(torch.ones(1), 0, name="passed")
    fails(ValueError, lambda: hvd.add_process_set(low))
    assert hvd.remove_process_set(low) is True and hvd.remove_process_set(high) is True
    assert hvd.remove_process_set(low) is False


def the_timeline_is_complete_while_the_job_runs():
    path = FOLDER / "timeline.json"
    hvd.start_timeline(str(path), mark_cycles=True)
    for _ in range(3):
        hvd.allreduce(torch.ones(3), name="traced")
    if hvd.rank() == 0:
        words = ("allreduce.traced", "NEGOTIATE_ALLREDUCE", "ALLREDUCE", "CYCLE_START")
        deadline = time.monotonic() + 60
        while missing := [word for word in words if word not in path.read_text()]:
            assert time.monotonic() < deadline, missing
            time.sleep(0.01)
    hvd.stop_timeline()
    if hvd.rank() == 0:
        json.loads(path.read_text())


def network():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    return model


def digest(model):
    flat = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    every = hvd.allgather(flat.reshape(1, -1))
    assert all(torch.equal(row, flat) for row in every), "ranks differ"
    return flat


def synchronize_then_step_warns_once():
    model = network()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), 0.1), model.named_parameters()
    )
    model(torch.ones(2, 4) * (hvd.rank() + 1)).sum().backward()
    optimizer.synchronize()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        optimizer.step()
    texts = [str(each.message) for each in caught]
    assert (
        len(texts) == 1
        and "optimizer.step() called without optimizer.skip_synchronize()" in texts[0]
    ), texts
    digest(model)


def names_must_be_complete_and_different():
    model = network()
    named = list(model.named_parameters())
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    fails(ValueError, lambda: hvd.DistributedOptimizer(sgd, named[:2]))
    fails(
        ValueError, lambda: hvd.DistributedOptimizer(sgd, [("same", p) for _, p in named]), "same"
    )


def later_steps_reduce_like_the_first():
    """Small gradients travel in packs from the second step on; unused and frozen ones included."""

    def losses(model, step):
        torch.manual_seed(step * 10 + hvd.rank())
        x = model[0](torch.randn(3, 4))
        if step == 4:  # only some parameters take part, and not the same everywhere
            return x.sum() if hvd.rank() == 0 else model[2](x.relu()).sum()
        return model[2](x.relu()).square().mean()

    for arguments in (
        {},
        {"op": hvd.Sum},
        {"gradient_predivide_factor": 2.0},
        {"backward_passes_per_step": 2},
    ):
        model, reference = network(), network()
        plain = torch.optim.SGD(reference.parameters(), lr=0.1, momentum=0.9)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
            model.named_parameters(),
            **arguments,
        )
        for step in range(8):
            for each in (model, reference):
                each[0].weight.requires_grad_(step != 5)
            if step == 6:  # gradients that the caller throws away
                for _ in range(arguments.get("backward_passes_per_step", 1)):
                    losses(model, 100).backward()
                model.zero_grad()
            else:
                optimizer.zero_grad(set_to_none=step % 2 == 0)
            plain.zero_grad(set_to_none=step % 2 == 0)
            for part in range(arguments.get("backward_passes_per_step", 1)):
                losses(model, step + 20 * part).backward()
                losses(reference, step + 20 * part).backward()
            optimizer.step()  # before other collectives: rank 0 sends what it has not used only now
            for p in reference.parameters():
                if p.requires_grad:
                    p.grad = torch.zeros_like(p) if p.grad is None else p.grad
                    hvd.allreduce_(p.grad, op=arguments.get("op", hvd.Average))
            plain.step()
            for (name, p), q in zip(model.named_parameters(), reference.parameters(), strict=True):
                assert torch.allclose(p, q, atol=1e-6), (arguments, step, name)
        assert len(optimizer._rabit_reducer._layout.packs) == 1
        digest(model)


def a_gan_with_two_optimizers_trains():
    torch.manual_seed(1)
    generator, critic = nn.Linear(3, 4), nn.Linear(4, 1)
    for each in (generator, critic):
        hvd.broadcast_parameters(each.state_dict(), root_rank=0)
    first = hvd.DistributedOptimizer(
        torch.optim.Adam(generator.parameters()), generator.named_parameters()
    )
    second = hvd.DistributedOptimizer(
        torch.optim.Adam(critic.parameters()), critic.named_parameters()
    )
    for step in range(4):
        torch.manual_seed(step * 10 + hvd.rank())
        fake = generator(torch.randn(5, 3))
        second.zero_grad()
        (critic(fake.detach()).mean() - critic(torch.randn(5, 4)).mean()).backward()
        second.step()
        first.zero_grad()
        (-critic(generator(torch.randn(5, 3))).mean()).backward()
        first.step()
    digest(generator), digest(critic)


def scaling_and_clipping_work_unaided():
    model = network()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), 0.1), model.named_parameters()
    )
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for step in range(3):
        torch.manual_seed(step * 10 + hvd.rank())
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(model(torch.randn(3, 4)).square().mean()).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
    digest(model)


def parameters_may_come_later_and_stay_unused():
    model, extra = network(), nn.Linear(2, 2)
    hvd.broadcast_parameters(extra.state_dict(), root_rank=0)
    model[0].bias.requires_grad_(False)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1))
    optimizer.add_param_group({"params": extra.parameters()})
    for step in range(3):
        optimizer.zero_grad()
        x = model(torch.ones(2, 4) * (hvd.rank() + 1))
        (extra(x) if step % 2 and hvd.rank() == 0 else x).sum().backward()
        optimizer.step()
    digest(model), digest(extra)


def the_state_of_every_optimizer_is_broadcast():
    kinds = [
        kind
        for name, kind in vars(torch.optim).items()
        if isinstance(kind, type)
        and issubclass(kind, torch.optim.Optimizer)
        and name not in ("Optimizer", "SparseAdam", "Muon")
    ]
    assert len(kinds) >= 12
    for kind in kinds:
        model = network()
        optimizer = kind(model.parameters(), lr=0.01 * (hvd.rank() + 1))

        def loss(model=model, optimizer=optimizer):
            optimizer.zero_grad()
            value = model(torch.ones(2, 4) * (hvd.rank() + 1)).square().mean()
            value.backward()
            return value

        if hvd.rank() == 0:  # the others have no state yet
            optimizer.step(loss)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        states = hvd.allgather_object(
            [
                [each.tolist() for each in state.values() if isinstance(each, torch.Tensor)]
                for state in optimizer.state_dict()["state"].values()
            ]
        )
        assert all(each == states[0] for each in states), kind
        assert optimizer.param_groups[0]["lr"] == 0.01, kind


def adaptive(vectors):
    """The formula of the paper, along the same tree, in float64."""
    vectors = [each.double() for each in vectors]
    while len(vectors) > 1:
        pairs = zip(vectors[::2], vectors[1::2], strict=False)
        combined = [
            (1 - a.dot(b) / (2 * a.dot(a))) * a + (1 - a.dot(b) / (2 * b.dot(b))) * b
            for a, b in pairs
        ]
        vectors = combined + (vectors[-1:] if len(vectors) % 2 else [])
    return vectors[0]


def adasum_follows_the_paper():
    size, rank = hvd.size(), hvd.rank()
    every = [torch.randn(37, generator=torch.Generator().manual_seed(r)) for r in range(size)]
    found = hvd.allreduce(every[rank], op=hvd.Adasum, name="adasum")
    assert (found - adaptive(every)).abs().max() < 1e-5
    assert torch.equal(hvd.allgather(found.reshape(1, -1))[0], found)
    same = hvd.allreduce(torch.arange(1.0, 6.0), op=hvd.Adasum)
    assert torch.allclose(same, torch.arange(1.0, 6.0))  # equal gradients are averaged
    apart = torch.zeros(size)
    apart[rank] = 3.0
    assert torch.allclose(
        hvd.allreduce(apart, op=hvd.Adasum), torch.full((size,), 3.0)
    )  # orthogonal: added
    half = hvd.allreduce(every[rank].half(), op=2, prescale_factor=2.0)
    assert half.dtype == torch.float16 and (half - 2 * adaptive(every)).abs().max() < 0.05
    pieces = [each[: size - 1] for each in every], [each[size:] for each in every]
    for got, want in zip(
        hvd.grouped_allreduce([p[rank] for p in pieces], op=hvd.Adasum), pieces, strict=True
    ):
        assert (got - adaptive(want)).abs().max() < 1e-5
    model = network()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        model.named_parameters(),
        op=hvd.Adasum,
    )
    before = digest(model)
    for step in range(2):
        optimizer.zero_grad()
        torch.manual_seed(step * 10 + rank)
        model(torch.randn(3, 4)).square().mean().backward()
        optimizer.step()
    assert not torch.equal(digest(model), before)


def sparse_gradients_add_up():
    rank, size = hvd.rank(), hvd.size()
    mine = torch.sparse_coo_tensor(
        torch.tensor([[rank, size]]), torch.ones(2, 2), (size + 2, 2), check_invariants=False
    )
    handle = hvd.sparse_allreduce_async(mine, name="sparse", op=hvd.Sum)
    dense = handle().to_dense()
    assert dense[:, 0].tolist() == [1.0] * size + [float(size), 0.0]


def objects_of_any_size_travel():
    size, rank = hvd.size(), hvd.rank()
    assert hvd.broadcast_object({"a": [rank] * 1000}, root_rank=1)["a"][0] == 1
    assert hvd.allgather_object("x" * rank) == ["x" * r for r in range(size)]


def all_ranks_stop_at_the_same_step():
    assert hvd.should_stop() is False  # and listens from here on
    stopped = 100
    for step in range(100):
        if step == 5 and hvd.rank() == hvd.size() - 1:
            os.kill(os.getpid(), signal.SIGUSR1)
        hvd.allreduce(torch.ones(2), name="step")
        if hvd.should_stop():
            stopped = step
            break
    assert 5 <= stopped < 100
    assert hvd.allgather_object(stopped) == [stopped] * hvd.size()
    assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    assert hvd.any_rank(hvd.rank() == 1) is True and hvd.any_rank(False) is False


def capabilities_are_told():
    assert hvd.is_initialized() and hvd.is_homogeneous()
    assert hvd.gloo_built() is False and hvd.ddl_built() is False and hvd.ccl_built() is False
    for name in ("mpi_built", "mpi_enabled", "mpi_threads_supported", "cuda_built", "rocm_built"):
        assert isinstance(getattr(hvd, name)(), bool), name
    assert isinstance(hvd.nccl_built(), int)


def the_engine_starts_again_after_shutdown():
    for _ in range(3):
        hvd.shutdown()
        assert not hvd.is_initialized()
        fails((ValueError, RuntimeError), hvd.rank, "init")
        hvd.init()
        assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == hvd.size()


TOOLS = ("fails", "hvd_size", "network", "digest", "adaptive")
BEHAVIOURS = [
    each
    for name, each in list(globals().items())
    if getattr(each, "__module__", "") == "__main__" and name not in TOOLS
]

if __name__ == "__main__":
    outcome = {}
    for behaviour in BEHAVIOURS:
        try:
            behaviour()
            outcome[behaviour.__name__] = "ok"
        except BaseException:
            outcome[behaviour.__name__] = traceback.format_exc()
        Path(FOLDER, f"rank.{hvd.rank()}.json").write_text(json.dumps(outcome))
    hvd.shutdown()
