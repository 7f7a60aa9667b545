"""Every public name of horovod.torch exists here, with its arguments in their order and its defaults."""

from __future__ import annotations

import ast
import importlib
import inspect
import operator

import pytest
import torch
from frameworks import horovod_names

import rabit_torch


def arguments(text):
    """The arguments of "a, b=1" as (name, default) pairs; inspect's empty where there is none."""
    found = ast.parse(f"def f({text}): pass").body[0].args
    missing = [inspect.Parameter.empty] * (len(found.args) - len(found.defaults))
    known = {"SET": rabit_torch.global_process_set, "NONE": rabit_torch.Compression.none}
    defaults = [
        known[each.id] if isinstance(each, ast.Name) else ast.literal_eval(each)
        for each in found.defaults
    ]
    return list(zip([each.arg for each in found.args], missing + defaults, strict=True))


def assert_takes(function, text):
    parameters = [
        each
        for each in inspect.signature(function).parameters.values()
        if each.kind == inspect.Parameter.POSITIONAL_OR_KEYWORD and each.name != "self"
    ]
    wanted = arguments(text)
    assert [each.name for each in parameters[: len(wanted)]] == [name for name, _ in wanted]
    for parameter, (name, default) in zip(parameters, wanted, strict=False):
        if default is not inspect.Parameter.empty:
            assert parameter.default == default, name
    for parameter in parameters[len(wanted) :]:  # additions are optional
        assert parameter.default is not inspect.Parameter.empty, parameter


@pytest.mark.parametrize("name", horovod_names.FUNCTIONS)
def test_function_has_the_arguments_and_defaults(name):
    assert name in rabit_torch.__all__
    assert_takes(getattr(rabit_torch, name), horovod_names.FUNCTIONS[name])


def test_every_operation_takes_a_backend_and_a_priority():
    operations = {
        name: inspect.signature(getattr(rabit_torch, name)).parameters
        for name in rabit_torch.__all__
        if name.startswith(
            (
                "allgather",
                "allreduce",
                "alltoall",
                "broadcast",
                "gather",
                "grouped",
                "recv",
                "reduce",
                "scatter",
                "send",
            )
        )
        and "object" not in name
        and "parameters" not in name
        and "state" not in name
    }

    assert len(operations) > 30
    assert [name for name, found in operations.items() if "backend" not in found] == []
    messages = {"send", "send_async", "recv", "recv_async"}
    assert {name for name, found in operations.items() if "priority" not in found} == messages


@pytest.mark.parametrize("name", horovod_names.CONSTANTS)
def test_constant_has_the_number(name):
    assert getattr(rabit_torch, name) == horovod_names.CONSTANTS[name]


@pytest.mark.parametrize("owner", horovod_names.ATTRIBUTES)
def test_attributes_exist(owner):
    found = operator.attrgetter(owner)(rabit_torch)
    if owner == "ProcessSet":
        found = found([0])

    for name in horovod_names.ATTRIBUTES[owner]:
        assert hasattr(found, name), name


def test_a_failed_operation_raises_what_horovod_scripts_catch():
    assert issubclass(rabit_torch.HorovodInternalError, RuntimeError)
    assert issubclass(rabit_torch.PeerLost, rabit_torch.HorovodInternalError)
    assert issubclass(rabit_torch.InvalidArgument, ValueError)


@pytest.mark.parametrize("op", [rabit_torch.Average, rabit_torch.Adasum])
def test_wrapped_optimizer_has_the_methods(op):
    parameter = torch.nn.Parameter(torch.ones(2))
    rabit_torch.init()
    try:
        optimizer = rabit_torch.DistributedOptimizer(
            torch.optim.SGD([parameter], lr=0.1), [("w", parameter)], op=op
        )
        for name, text in horovod_names.OPTIMIZER.items():
            assert_takes(getattr(optimizer, name), text)
        for name in horovod_names.OPTIMIZER_INTERNALS:
            assert hasattr(optimizer, name)
        assert optimizer._parameter_names == {parameter: "w"}
        optimizer.zero_grad(set_to_none=True)
        assert isinstance(optimizer, torch.optim.SGD)
    finally:
        rabit_torch.shutdown()


def test_compressors_work_by_hand():
    half, context = rabit_torch.Compression.fp16.compress(torch.tensor([1.5]))

    assert half.dtype == torch.float16
    assert rabit_torch.Compression.fp16.decompress(half, context).dtype == torch.float32


def test_elastic_has_the_names_of_horovod():
    elastic = rabit_torch.elastic

    assert_takes(elastic.TorchState, "model=None, optimizer=None")
    assert_takes(elastic.ElasticSampler, "dataset, shuffle=True, seed=0")
    assert_takes(elastic.run, "func")
    for name in (
        "commit",
        "restore",
        "sync",
        "save",
        "reset",
        "on_reset",
        "register_reset_callbacks",
    ):
        assert callable(getattr(elastic.TorchState, name))
    for name in ("set_epoch", "record_batch", "state_dict", "load_state_dict", "reset"):
        assert callable(getattr(elastic.ElasticSampler, name))
    assert issubclass(elastic.ObjectState, elastic.State)
    assert elastic.HorovodInternalError is rabit_torch.HorovodInternalError


def test_elastic_states_take_the_names_of_values_in_scripts_for_horovod():
    names = "batch epoch commits rendezvous updates train_sampler val_sampler scheduler iteration best_acc"

    state = rabit_torch.elastic.TorchState(**dict.fromkeys(names.split(), 1))
    state.commits += 1
    state.commit()
    state.commits += 1
    state.restore()

    assert state.commits == 2


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("mpi_ops", [*horovod_names.FUNCTIONS, *horovod_names.CONSTANTS]),
        (
            "functions",
            [
                "allgather_object",
                "broadcast_object",
                "broadcast_optimizer_state",
                "broadcast_parameters",
            ],
        ),
        ("compression", ["Compression"]),
        ("optimizer", ["DistributedOptimizer"]),
        ("sync_batch_norm", ["SyncBatchNorm"]),
        ("elastic.sampler", ["ElasticSampler"]),
        ("elastic.state", ["TorchState"]),
    ],
)
def test_the_modules_of_horovod_have_their_names(module, names):
    found = importlib.import_module(f"rabit_torch.{module}")
    elsewhere = {
        "broadcast_parameters",
        "broadcast_optimizer_state",
        "broadcast_object",
        "allgather_object",
    }
    elsewhere |= {"DistributedOptimizer", "SyncBatchNorm"}

    for name in names:
        if module != "mpi_ops" or name not in elsewhere:
            owner = rabit_torch.elastic if module.startswith("elastic") else rabit_torch
            assert getattr(found, name) is getattr(owner, name), name
