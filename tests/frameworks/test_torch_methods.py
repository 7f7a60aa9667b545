"""Every method of the registry behind DistributedOptimizer and ddp_hook: the bits of ArrayTrainer, or a refusal."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support import front_ends
from support.front_ends import OF_STEPS, TEXTS

import rabit_torch as rabit
from rabit.testing import run_ranks


class Model(torch.nn.Module):
    """Parameters whose gradients are given."""

    def __init__(self, dtype):
        super().__init__()
        for name, value in front_ends.first(dtype).items():
            self.register_parameter(name, torch.nn.Parameter(torch.from_numpy(value)))

    def forward(self, step):
        parts = []
        for name, parameter in self.named_parameters():
            given = torch.from_numpy(
                front_ends.noise(name, rabit.rank(), step, parameter.detach().numpy().dtype.type)
            )
            parts.append((parameter * (given + front_ends.SHARE * parameter.detach())).sum())
        return torch.stack(parts).sum()

    def values(self):
        return {name: each.detach().numpy() for name, each in self.named_parameters()}


def by_torch(method, dtype, **arguments):
    """The parameters at the end, and the name that the optimizer's tensors have."""
    model = Model(dtype)
    optimizer = rabit.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0),
        model.named_parameters(),
        strategy=TEXTS[method],
        **arguments,
    )
    for step in range(front_ends.STEPS):
        optimizer.param_groups[0]["lr"] = front_ends.rate(step)
        front_ends.before(optimizer.strategy, rabit.rank(), step)
        optimizer.zero_grad()
        model(step).backward()
        optimizer.step()
        if front_ends.waits_for_averages(method):
            optimizer.strategy_state_dict()
    optimizer.strategy_state_dict()
    return model.values(), optimizer._rabit_reducer.states[0].name.removesuffix(".table")


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_an_optimizer_comes_to_the_bits_of_arrays_by_every_method(dtype):
    def on_rank(engine):
        wrong = {}
        for method in TEXTS:
            values, name = by_torch(method, dtype)
            expected = front_ends.by_arrays(engine, method, name, dtype)
            wrong[method] = front_ends.difference(values, expected, dtype)
        return {method: each for method, each in wrong.items() if each}

    assert run_ranks(2, on_rank) == [{}, {}]


@pytest.mark.parametrize("method", sorted(OF_STEPS))
def test_what_works_in_step_is_refused_where_nobody_is_told_of_it(method):
    def on_rank(engine):
        model = Model(np.float32)
        with pytest.raises(rabit.InvalidArgument, match=r"works on parameters in step\(\), and a communication hook"):
            rabit.DdpMethod(TEXTS[method], model.named_parameters())
        with pytest.raises(rabit.InvalidArgument, match="overlap='next-forward' puts updates off"):
            by_torch(method, np.float32, overlap="next-forward")

    run_ranks(1, on_rank)


BY_DDP = """
import numpy as np
import torch.distributed as dist
import rabit as core
sys.path[:0] = {paths}
from frameworks.test_torch_methods import Model
from support import front_ends

dist.init_process_group(
    "rabit", rank=rabit.rank(), world_size=rabit.size(), init_method=f"file://{{sys.argv[0]}}.meet"
)
wrong = {{}}
for method in sorted(set(front_ends.TEXTS) - front_ends.OF_STEPS):
    model = Model(np.float32)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    strategy = rabit.strategies.make(front_ends.TEXTS[method])
    hook = rabit.DdpMethod(strategy, model.named_parameters(), optimizer)
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    wrapped.register_comm_hook(hook, rabit.ddp_hook)
    for step in range(front_ends.STEPS):
        optimizer.param_groups[0]["lr"] = front_ends.rate(step)
        front_ends.before(strategy, rabit.rank(), step)
        optimizer.zero_grad()
        wrapped(step).backward()
        optimizer.step()
    hook.state_dict()
    name = hook._pipeline._name
    expected = front_ends.by_arrays(core.default_engine(), method, name, np.float32)
    wrong[method] = front_ends.difference(model.values(), expected, np.float32)
report(wrong)
dist.destroy_process_group()
"""


def test_a_hook_of_ddp_comes_to_the_bits_of_arrays_by_every_method_for_gradients(on_ranks, pytestconfig):
    paths = [str(pytestconfig.rootpath / "tests")]

    found = on_ranks(2, BY_DDP.format(paths=paths))

    assert [set(each) for each in found] == [set(TEXTS) - OF_STEPS] * 2
    assert [{name: each for name, each in rank.items() if each} for rank in found] == [{}, {}]
