"""Gathers and sums of parameters in parts follow a plan."""

import copy
import json

import torch
from support.topologies import racks

import rabit_torch
from rabit.planned import follow_plan
from rabit.planner import Plan
from rabit.planner.document import described
from rabit.testing import run_ranks
from rabit_torch import sharding


def test_parameters_in_parts_are_gathered_and_summed_along_a_plan(tmp_path):
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(described(Plan(racks(2, 2, 5)))))
    torch.manual_seed(0)
    base = torch.nn.Sequential(torch.nn.Linear(300, 301), torch.nn.Tanh(), torch.nn.Linear(301, 3))

    def run(engine, is_planned):
        if is_planned:
            follow_plan(engine, str(path), f"h{engine.rank}")
        model = copy.deepcopy(base)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        sharding.shard(model)
        optimizer = rabit_torch.DistributedOptimizer(
            optimizer, model.named_parameters(), shard="parameters", model=model
        )
        for step in range(3):
            optimizer.zero_grad()
            generator = torch.Generator().manual_seed(10 * step + engine.rank)
            model(torch.randn(5, 300, generator=generator)).square().mean().backward()
            optimizer.step()
        planned = {route["kind"] for route in engine.statistics()["routes"] if route["algorithm"] == "plan"}
        with sharding.gathered(model):
            return {name: value.clone() for name, value in model.state_dict().items()}, planned

    values, planned = run_ranks(4, lambda engine: run(engine, False))[0]
    assert not planned
    for found, planned in run_ranks(4, lambda engine: run(engine, True)):
        assert planned >= {"allgather", "reducescatter"}
        for name, value in values.items():
            torch.testing.assert_close(found[name], value)
