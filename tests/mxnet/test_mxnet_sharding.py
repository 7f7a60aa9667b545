"""DistributedTrainer(shard=...) trains as without it, with a part of the optimizer's state on each rank."""

from __future__ import annotations

import pytest

STAGES = ["optimizer", "gradients"]
OPTIMIZERS = {
    "sgd": {"learning_rate": 0.05},
    "sgd momentum": {"learning_rate": 0.05, "momentum": 0.9, "wd": 1e-4},
    "adam": {"learning_rate": 0.01},
}

SETUP = """
import hashlib
from rabit.checkpoint import Checkpoint, Part
from rabit.sharding import joined


def made(dtype="float32"):
    mx.random.seed(7)
    np.random.seed(7)
    net = mx.gluon.nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(
            mx.gluon.nn.Conv2D(8, 3, in_channels=3, activation="tanh"),
            mx.gluon.nn.Flatten(),
            mx.gluon.nn.Dense(33, activation="tanh", in_units=288),
            mx.gluon.nn.Dense(1, in_units=33),
        )
    net.cast(dtype)
    net.initialize(mx.init.Xavier())
    net.hybridize(static_alloc=True, static_shape=True)
    return net

loss_of = mx.gluon.loss.L2Loss()

def backward(net, step, dtype="float32"):
    rng = np.random.RandomState(100 * step + rank)
    data = mx.nd.array(rng.rand(6, 3, 8, 8), dtype=dtype)
    label = mx.nd.array(rng.rand(6), dtype=dtype)
    with mx.autograd.record():
        loss = loss_of(net(data), label)
    loss.backward()

def digest(net):
    values = [p.data().asnumpy().tobytes() for _, p in sorted(net.collect_params().items())]
    return hashlib.sha256(b"".join(values)).hexdigest()

def trainer_of(net, optimizer, settings, **options):
    return rabit.DistributedTrainer(net.collect_params(), optimizer, dict(settings), **options)
"""


def of(on_ranks, ranks, script, **variables):
    return on_ranks(ranks, SETUP + script, RABIT_DETERMINISTIC="1", **variables)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_parameters_have_the_bits_of_training_without(on_ranks, name):
    script = f"""
def train(stage):
    net = made()
    scheduler = mx.lr_scheduler.FactorScheduler(2, 0.5)
    settings = dict({OPTIMIZERS[name]!r}, lr_scheduler=scheduler)
    trainer = trainer_of(net, {name.split()[0]!r}, settings, shard=stage)
    for step in range(6):
        backward(net, step)
        trainer.step(6)
    return digest(net), trainer.learning_rate
report([train(stage) for stage in (None, "optimizer", "gradients")])
"""
    for ranks in (2, 3):
        found = of(on_ranks, ranks, script)

        assert len({tuple(result) for results in found for result in results}) == 1


def test_each_rank_has_its_part_of_the_state(on_ranks):
    script = """
net = made()
trainer = trainer_of(net, "adam", {"learning_rate": 0.01}, shard="optimizer")
backward(net, 0)
trainer.step(6)
report(sum(leaf.size for state in trainer._updaters[0].states.values() for leaf in state))
"""
    found = of(on_ranks, 2, script)

    whole = 2 * (8 * 27 + 8 + 33 * 288 + 33 + 33 + 1)
    assert sum(found) == whole
    assert max(found) <= whole / 2 + 2 * 64


def test_parameters_in_16_bits_have_parts_of_their_masters(on_ranks):
    """MXNet multiplies no matrices of float16 on a CPU: the gradients are given."""
    script = """
def train(stage):
    mx.random.seed(7)
    weights = mx.gluon.ParameterDict("p_")
    for name, shape in (("w", (65, 9)), ("b", (3,))):
        weights.get(name, shape=shape, dtype="float16", init=mx.init.Uniform(1))
    weights.initialize()
    settings = {"learning_rate": 1e-3, "momentum": 0.9, "multi_precision": True}
    trainer = rabit.DistributedTrainer(weights, "sgd", settings, shard=stage)
    rng = np.random.RandomState(rank)
    for step in range(5):
        with mx.autograd.record():
            loss = sum((p.data() * mx.nd.array(rng.rand(*p.shape), dtype="float16")).sum() for p in weights.values())
        loss.backward()
        trainer.step(1)
    masters = [leaf for state in trainer._updaters[0].states.values() for leaf in state if leaf.dtype == np.float32]
    return [p.data().asnumpy().tolist() for p in weights.values()], sum(leaf.size for leaf in masters)
report([train(stage) for stage in (None, "optimizer", "gradients")])
"""
    first, second = of(on_ranks, 2, script)

    values = [value for value, _ in first + second]
    assert values == [values[0]] * 6
    whole = 2 * (65 * 9 + 3)  # Masters and momenta are float32.
    assert first[0][1] == whole
    for stage in (1, 2):
        assert first[stage][1] + second[stage][1] == whole


def test_a_norm_has_the_same_bits_on_every_rank_and_clips_what_is_updated(on_ranks):
    script = """
def train(stage, max_norm):
    net = made()
    trainer = trainer_of(net, "sgd", {"learning_rate": 0.05}, shard=stage)
    backward(net, 0)
    trainer.allreduce_grads()
    if stage:
        norm = trainer.clip_global_norm(max_norm)
    else:
        norm = mx.gluon.utils.clip_global_norm([p.grad() for p in net.collect_params().values()], max_norm)
    trainer.update(6)
    return float(norm), net[3].weight.data().asnumpy().tolist()
report([train(None, 0.5), train("optimizer", 0.5), train("gradients", 0.5)])
"""
    for plain, *divided in of(on_ranks, 2, script):
        assert divided[0] == divided[1]
        assert divided[0][0] == pytest.approx(plain[0], rel=1e-6)
        assert divided[0][1][0] == pytest.approx(plain[1][0], rel=1e-5)


@pytest.mark.parametrize("stage", STAGES)
def test_state_is_saved_by_name_in_parts_and_loaded_with_other_stages_and_sizes(
    on_ranks, tmp_path, stage
):
    settings, folder = '{"learning_rate": 0.01}', tmp_path / "saved"
    save = f"""
net = made()
trainer = trainer_of(net, "adam", {settings}, shard={stage!r})
for step in range(3):
    backward(net, step)
    trainer.step(6)
state = trainer.state_dict()
assert all(type(part) is Part for values in state["state"].values() for part in values.values())
values = {{name: p.data().asnumpy() for name, p in net.collect_params().items()}}
checkpoint = Checkpoint({str(folder)!r})
checkpoint.save({{"model": values, "trainer": state}}, step=3)
checkpoint.close()
backward(net, 3)
trainer.step(6)
report(digest(net))
"""
    load = f"""
def resumed(stage):
    net = made()
    trainer = trainer_of(net, "adam", {settings}, shard=stage)
    checkpoint = Checkpoint({str(folder)!r})
    found = checkpoint.restore().state
    checkpoint.close()
    for name, p in net.collect_params().items():
        p.set_data(mx.nd.array(found["model"][name]))
    trainer.load_state_dict(found["trainer"])
    loaded = hashlib.sha256()
    for name, values in sorted(trainer.state_dict()["state"].items()):
        for key, value in sorted(values.items()):
            if type(value) is Part:
                value = joined(None, f"test.{{stage}}.{{name}}.{{key}}", key, value, rabit.global_process_set)
            loaded.update(value.tobytes())
    backward(net, 3)
    trainer.step(6)
    return digest(net), loaded.hexdigest()
report([resumed(stage) for stage in (None, "optimizer", "gradients")])
"""
    expected = of(on_ranks, 2, save)

    for results in of(on_ranks, 2, load):
        assert [digest for digest, _ in results] == [expected[0]] * 3
    states = {
        state for ranks in (1, 3) for results in of(on_ranks, ranks, load) for _, state in results
    }
    assert len(states) == 1


def test_gradients_are_readable_until_they_have_been_sent(on_ranks):
    script = """
net = made()
trainer = trainer_of(net, "sgd", {"learning_rate": 0.05}, shard="gradients")
weight = net[3].weight
for step in range(2):
    backward(net, step)
    assert weight.grad().asnumpy().any()
    trainer.step(6)
net.collect_params().zero_grad()
try:
    weight.grad()
except rabit.InvalidArgument as error:
    report(str(error))
"""
    for found in of(on_ranks, 2, script):
        assert "the gradient of 'net_dense1_weight'" in found
        assert "has been sent to its owners and freed" in found


REFUSED = {
    "compression=rabit.Compression.fp16": "takes no strategy, compression",
    "num_groups=2": "takes no strategy, compression",
    "strategy='diloco:every=10'": "takes no strategy, compression",
}


def test_what_does_not_combine_is_refused_with_the_reason(on_ranks):
    script = f"""
found = {{}}
net = made()
def attempt(key, what):
    try:
        what()
    except rabit.InvalidArgument as error:
        found[key] = str(error)
params = net.collect_params()
for options in {list(REFUSED)!r}:
    attempt(options, lambda: eval("rabit.DistributedTrainer(params, 'sgd', shard='optimizer', " + options + ")"))
for stage in ("parameters", "optimiser"):
    attempt(stage, lambda: rabit.DistributedTrainer(params, "sgd", shard=stage))
for name in ("lamb", "lars", "nadam"):
    def step():
        backward(net, 0)
        rabit.DistributedTrainer(params, name, shard="optimizer").step(1)
    attempt(name, step)
trainer = rabit.DistributedTrainer(params, "sgd", shard="optimizer")
attempt("save_states", lambda: trainer.save_states("x"))
attempt("load_states", lambda: trainer.load_states("x"))
backward(net, 0)
trainer.step(1)
net[3].bias.grad_req = "null"
attempt("frozen", lambda: trainer.step(1))
net[3].bias.grad_req = "add"
adding = rabit.DistributedTrainer(params, "sgd", shard="gradients")
attempt("add", lambda: adding.step(1))
report(found)
"""
    expected = {
        **REFUSED,
        "parameters": "Use 'gradients'",
        "optimiser": "expected one of 'optimizer', 'gradients'",
        "lamb": "LAMB gives a slice of an array other values",
        "lars": "LARS gives a slice of an array other values",
        "nadam": "Nadam gives a slice of an array other values",
        "save_states": "Save trainer.state_dict() on every rank",
        "load_states": "Use trainer.load_state_dict()",
        "frozen": "1 parameters have been frozen or thawed",
        "add": "adds up over backward passes",
    }
    for found in of(on_ranks, 2, script):
        assert set(found) == set(expected)
        for key, text in expected.items():
            assert text in found[key]


def test_a_script_is_not_changed_where_the_job_says_it(on_ranks):
    script = """
net = made()
trainer = trainer_of(net, "adam", {"learning_rate": 0.01})
backward(net, 0)
trainer.step(6)
report(sum(state[0].size for state in trainer._updaters[0].states.values()))
"""
    found = of(on_ranks, 2, script, RABIT_SHARD="gradients")

    assert sum(found) == 8 * 27 + 8 + 33 * 288 + 33 + 33 + 1
