"""Training on several ranks equals training in one process on the joint batch."""

from __future__ import annotations

import pytest

TRAIN = """
import hashlib
from torch import nn

torch.use_deterministic_algorithms(True)
dtype = getattr(torch, {dtype!r})
size, rank, batch, steps = rabit.size(), rabit.rank(), {batch}, {steps}
torch.manual_seed(7)
model = nn.Sequential(
    nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(512, 64), nn.Tanh(), nn.Linear(64, 10)
).to(dtype)
optimizer = {optimizer}
rabit.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = rabit.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(){extra})
generator = torch.Generator().manual_seed(11)
equal = True
for step in range(steps):
    images = torch.randn({joint}, 1, 8, 8, generator=generator, dtype=dtype)
    labels = torch.randint(0, 10, ({joint},), generator=generator)
    mine = slice(rank * batch, (rank + 1) * batch)
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(images[mine]), labels[mine]).backward()
    optimizer.step()
    flat = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    digest = hashlib.sha256(flat.numpy().tobytes()).hexdigest()
    equal = equal and len(set(rabit.allgather_object(digest))) == 1
report({{"equal": equal, "digest": digest, "parameters": flat.double().tolist()}})
"""
SGD = "torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)"
ADAM = "torch.optim.Adam(model.parameters(), lr=1e-3)"


def script(
    joint: int,
    ranks: int,
    dtype: str = "float32",
    optimizer: str = SGD,
    extra: str = "",
    steps: int = 50,
) -> str:
    return TRAIN.format(
        dtype=dtype,
        batch=joint // ranks,
        joint=joint,
        optimizer=optimizer,
        extra=extra,
        steps=steps,
    )


def relative_difference(a: list[float], b: list[float]) -> float:
    norm = sum(x * x for x in b) ** 0.5
    return float(sum((x - y) ** 2 for x, y in zip(a, b, strict=True)) ** 0.5 / norm)


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("float64", 1e-12)])
def test_ranks_train_to_the_parameters_of_one_process_on_the_joint_batch(
    on_ranks, ranks, dtype, tolerance
):
    (alone,) = on_ranks(1, script(32, 1, dtype))

    together = on_ranks(ranks, script(32, ranks, dtype))

    assert all(result["equal"] for result in together)
    difference = relative_difference(together[0]["parameters"], alone["parameters"])
    print(f"\n{ranks} ranks, {dtype}, 50 steps: relative difference {difference:.1e}")
    assert difference <= tolerance


def test_adam_trains_to_the_same_parameters(on_ranks):
    (alone,) = on_ranks(1, script(32, 1, "float64", ADAM))

    together = on_ranks(2, script(32, 2, "float64", ADAM))

    assert relative_difference(together[0]["parameters"], alone["parameters"]) <= 1e-12


def test_deterministic_runs_are_bitwise_equal_whatever_the_fusion_and_partition_sizes(on_ranks):
    digests = set()
    for fusion in ("0", "64K", "64M"):
        for partition in ("4K", "4M"):
            results = on_ranks(
                3,
                script(48, 3, steps=8),
                RABIT_DETERMINISTIC="1",
                RABIT_FUSION_BYTES=fusion,
                RABIT_PARTITION_BYTES=partition,
            )
            digests |= {result["digest"] for result in results}

    assert len(digests) == 1


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_transports_give_the_same_bits(on_ranks, transport):
    reference = on_ranks(2, script(32, 2, steps=5), RABIT_DETERMINISTIC="1")

    results = on_ranks(
        2, script(32, 2, steps=5), RABIT_DETERMINISTIC="1", RABIT_TRANSPORT=transport
    )

    assert results[0]["digest"] == reference[0]["digest"]


@pytest.mark.parametrize("compression", ["fp16", "bf16"])
def test_compressed_gradients_stay_close_and_equal_on_all_ranks(on_ranks, compression):
    extra = f", compression=rabit.Compression.{compression}"
    (alone,) = on_ranks(1, script(32, 1, steps=10))

    together = on_ranks(2, script(32, 2, extra=extra, steps=10))

    assert all(result["equal"] for result in together)
    assert 0 < relative_difference(together[0]["parameters"], alone["parameters"]) < 2e-2


@pytest.mark.parametrize(
    "extra", [", num_groups=2", ", gradient_predivide_factor=2.0", ", op=rabit.Sum"]
)
def test_arguments_of_the_optimizer_keep_ranks_equal(on_ranks, extra):
    results = on_ranks(2, script(32, 2, extra=extra, steps=5))

    assert all(result["equal"] for result in results)
    assert results[0]["digest"] == results[1]["digest"]


def test_broadcast_parameters_refuses_what_it_cannot_send_on_every_rank(on_ranks):
    results = on_ranks(
        2,
        """
def told(params):
    try:
        rabit.broadcast_parameters(params, 0)
    except rabit.InvalidArgument as error:
        return f"{error.rank}: {error}"

rank, pair = rabit.rank(), lambda: ("a", torch.full((2,), float(rabit.rank())))
mixed = {1: pair()[1], "b": pair()[1]}
report([
    told([pair(), pair()]),
    told([pair(), pair()] if rank else [pair()]),
    told(None),
    told({"a": 3.0}),
    told(mixed),
    [value.tolist() for value in mixed.values()],
])
""",
    )

    twice = "broadcast_parameters: 'a' names more than one tensor; give every tensor its own name, for example "
    twice += "one that begins with that of its model"
    for rank, (both, one, none, number, mixed, values) in enumerate(results):
        assert both == f"-1: {twice}"
        assert one == (f"-1: {twice}" if rank else f"1: rank 1 refused it: {twice}")
        assert "named_parameters(): (name, tensor) pairs, not NoneType" in none
        assert "'a' is float, not a tensor" in number
        assert mixed is None
        assert values == [[0.0, 0.0]] * 2
