"""Training on several ranks equals training on one rank with the joint batch."""

from __future__ import annotations

import numpy as np
import pytest

DATA = """
joint = 16
rng = np.random.RandomState(5)
images = rng.rand(joint, 3, 8, 8)
labels = rng.randint(0, 5, joint).astype("float64")
share = slice(rank * joint // size, (rank + 1) * joint // size)
"""

GLUON = (
    DATA
    + """
mx.random.seed(7 + rank)
np.random.seed(7 + rank)
net = mx.gluon.nn.HybridSequential(prefix="net_")
with net.name_scope():
    net.add(
        mx.gluon.nn.Conv2D(8, 3, activation="tanh"),
        mx.gluon.nn.Flatten(),
        mx.gluon.nn.Dense(16, activation="tanh"),
        mx.gluon.nn.Dense(5),
    )
net.cast("float64")
net.initialize(mx.init.Xavier())
if {hybrid}:
    net.hybridize(static_alloc=True, static_shape=True)
data, label = mx.nd.array(images[share], dtype="float64"), mx.nd.array(labels[share])
loss_of = mx.gluon.loss.SoftmaxCrossEntropyLoss()
params = net.collect_params()
# rank 0 of one job starts like rank 0 of another, whatever the other ranks drew
rabit.broadcast_parameters(params, root_rank=0)  # deferred: Conv2D does not know its channels yet
net(data)
trainer = rabit.DistributedTrainer(params, {optimizer!r}, {settings!r}, **{extra!r})
for step in range({steps}):
    with mx.autograd.record():
        loss = loss_of(net(data), label)
    loss.backward()
    trainer.step(joint // size)
report({{name: p.data().asnumpy().reshape(-1).tolist() for name, p in params.items()}})
"""
)

MODULE = (
    DATA
    + """
x = mx.sym.var("data", dtype="float64")
x = mx.sym.Convolution(x, kernel=(3, 3), num_filter=8, name="conv")
x = mx.sym.Activation(x, act_type="tanh")
x = mx.sym.FullyConnected(mx.sym.flatten(x), num_hidden=5, name="out")
symbol = mx.sym.SoftmaxOutput(x, mx.sym.var("softmax_label", dtype="float64"), name="softmax")
module = mx.mod.Module(symbol)
mine = joint // size
module.bind(
    [mx.io.DataDesc("data", (mine, 3, 8, 8), dtype="float64")],
    [mx.io.DataDesc("softmax_label", (mine,), dtype="float64")],
)
mx.random.seed(11 + rank)
np.random.seed(11 + rank)
module.init_params(mx.init.Xavier())
weights, extra = module.get_params()
rabit.broadcast_parameters(weights, root_rank=0)
module.set_params(weights, extra)
optimizer = mx.optimizer.create({optimizer!r}, rescale_grad=1.0 / mine, **{settings!r})
optimizer = rabit.DistributedOptimizer(optimizer, **{extra!r})
module.init_optimizer(kvstore=None, optimizer=optimizer)
batch = mx.io.DataBatch(
    [mx.nd.array(images[share], dtype="float64")], [mx.nd.array(labels[share], dtype="float64")]
)
for step in range({steps}):
    module.forward_backward(batch)
    module.update()
weights, _ = module.get_params()
report({{name: value.asnumpy().reshape(-1).tolist() for name, value in weights.items()}})
"""
)

OPTIMIZERS = {
    "sgd": {"learning_rate": 0.05, "momentum": 0.9, "wd": 1e-4},
    "adam": {"learning_rate": 0.01},
}


def train(on_ranks, script, ranks, optimizer, extra=None, steps=50, hybrid=False):
    return on_ranks(
        ranks,
        script.format(
            optimizer=optimizer,
            settings=OPTIMIZERS[optimizer],
            extra=extra or {},
            steps=steps,
            hybrid=hybrid,
        ),
    )


def assert_equal_training(alone, together, limit=1e-6):
    for other in together[1:]:
        assert other == together[0], "the ranks differ"
    for name, values in alone.items():
        expected, found = np.array(values), np.array(together[0][name])
        assert np.linalg.norm(found - expected) <= limit * np.linalg.norm(expected), name


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("script", [GLUON, MODULE], ids=["gluon", "module"])
def test_ranks_train_like_one_rank_with_the_joint_batch(on_ranks, script, optimizer):
    (alone,) = train(on_ranks, script, 1, optimizer)

    for ranks in (2, 4):
        assert_equal_training(alone, train(on_ranks, script, ranks, optimizer))


@pytest.mark.parametrize(
    "extra",
    [{"num_groups": 2}, {"gradient_predivide_factor": 2.0}, {"prefix": "a."}],
    ids=lambda extra: next(iter(extra)),
)
def test_the_options_of_the_trainer_change_no_result(on_ranks, extra):
    (alone,) = train(on_ranks, GLUON, 1, "sgd", steps=10)

    together = train(on_ranks, GLUON, 2, "sgd", extra, steps=10, hybrid=True)

    assert_equal_training(alone, together)


@pytest.mark.parametrize("kind", ["fp16", "bf16"])
def test_compression_params_choose_a_codec(on_ranks, kind):
    (alone,) = train(on_ranks, GLUON, 1, "sgd", steps=10)

    together = train(on_ranks, GLUON, 2, "sgd", {"compression_params": {"type": kind}}, steps=10)

    assert_equal_training(alone, together, limit=0.05)
    differs = [np.linalg.norm(np.subtract(alone[name], together[0][name])) for name in alone]
    assert max(differs) > 1e-9, "nothing was compressed"


def test_a_user_compressor_and_a_wrapped_optimizer_are_accepted(on_ranks):
    script = """
    import warnings
    class Halves:
        @staticmethod
        def compress(tensor):
            return tensor.astype("float16"), tensor.dtype
        @staticmethod
        def decompress(tensor, context):
            return tensor.astype(context)
    dense = mx.gluon.nn.Dense(1, in_units=4, prefix="d_")
    dense.initialize(mx.init.One())
    inner = mx.optimizer.SGD(learning_rate=1.0)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        trainer = rabit.DistributedTrainer(
            dense.collect_params(), rabit.DistributedOptimizer(inner), compression=Halves
        )
    with mx.autograd.record():
        loss = dense(mx.nd.ones((1, 4)) * (rank + 1)).sum()
    loss.backward()
    trainer.allreduce_grads()
    trainer.update(1)
    report([dense.weight.data().asnumpy().tolist(), [str(each.message) for each in said]])
    """

    for weights, said in on_ranks(2, script):
        assert weights == [[1 - 1.5] * 4]  # The mean of the gradients 1 and 2.
        assert any("DistributedOptimizer" in each for each in said)


def test_an_optimizer_takes_the_mean_where_the_sum_leaves_the_type(on_ranks):
    script = """
    optimizer = rabit.DistributedOptimizer(mx.optimizer.SGD(learning_rate=1.0, rescale_grad=0.5))
    weight, gradient = mx.nd.zeros(4, dtype="float16"), mx.nd.full(4, 40000, dtype="float16")
    optimizer.update(0, weight, gradient, optimizer.create_state(0, weight))
    report([weight.asnumpy().tolist(), gradient.asnumpy().tolist(), optimizer.unwrap().rescale_grad])
    """

    assert on_ranks(3, script) == [[[-20000.0] * 4, [40000.0] * 4, 0.5]] * 3


def test_two_trainers_of_one_program_do_not_meet(on_ranks):
    """As in a GAN; gradients of both are in flight together, and those of other sizes have one index."""
    script = """
    nets = [mx.gluon.nn.Dense(units, in_units=4, use_bias=False) for units in (1, 3)]
    for net in nets:
        net.initialize(mx.init.One())
    trainers = [
        rabit.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 1.0}) for net in nets
    ]
    for _ in range(3):
        for net, trainer in zip(nets, trainers):
            with mx.autograd.record():
                loss = net(mx.nd.ones((1, 4)) * (rank + 1)).sum()
            loss.backward()
            trainer.step(1)
    report([net.weight.data().asnumpy().tolist() for net in nets])
    """

    for weights in on_ranks(2, script):
        assert weights == [[[1 - 3 * 1.5] * 4] * units for units in (1, 3)]


def test_wrong_options_are_named(on_ranks):
    script = """
    dense = mx.gluon.nn.Dense(1, in_units=4)
    dense.initialize()
    texts = []
    for options in ({"compression_params": {"type": "2bit"}}, {"num_groups": -1}, {"prefix": 3}):
        try:
            rabit.DistributedTrainer(dense.collect_params(), "sgd", **options)
        except rabit.InvalidArgument as error:
            texts.append(str(error))
    try:
        rabit.DistributedOptimizer(rabit.DistributedOptimizer(mx.optimizer.create("sgd")))
    except rabit.InvalidArgument as error:
        texts.append(str(error))
    report(texts)
    """
    ((two_bit, groups, prefix, twice),) = on_ranks(1, script)

    assert "2bit" in two_bit and "fp16" in two_bit
    assert "num_groups is -1" in groups and "prefix is 3" in prefix
    assert "is wrapped by DistributedOptimizer already" in twice


def test_parameters_that_only_some_ranks_have_are_named(on_ranks):
    script = """
    values = {"a": mx.nd.ones((2,)), ("b" if rank == 0 else "c"): mx.nd.ones((2,))}
    try:
        rabit.broadcast_parameters(values, root_rank=0)
        report("no error")
    except rabit.Mismatch as error:
        report(str(error))
    """

    for text in on_ranks(2, script):
        assert "rank 1" in text and "'b'" in text and "'c'" in text


def test_torch_and_mxnet_share_one_engine(on_ranks):
    pytest.importorskip("torch", reason="torch is not installed")
    script = """
    import torch
    import rabit_torch
    handle = rabit_torch.allreduce_async(torch.ones(1000) * rank, name="t", op=rabit.Sum)
    array = rabit.allreduce(mx.nd.ones((1000,)) * rank, name="m", op=rabit.Sum)
    tensor = rabit_torch.synchronize(handle)
    report([rabit_torch.rank() == rank, float(array.sum().asscalar()), float(tensor.sum())])
    """

    assert on_ranks(2, script) == [[True, 1000.0, 1000.0]] * 2


def test_what_the_forward_pass_needs_first_goes_first_and_is_updated_alone(on_ranks):
    """Gluon orders by name, dense10 before dense2, and updates four parameters at a time."""
    script = """
    from rabit_mxnet import trainer as trainer_module
    net = mx.gluon.nn.HybridSequential(prefix="net_")
    with net.name_scope():
        for _ in range(12):
            net.add(mx.gluon.nn.Dense(2, in_units=2, use_bias=False))
    net.initialize()
    trainer = rabit.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    reduced, updated = [], []
    reduce_gradients = trainer_module.reduce_gradients
    update = trainer._optimizer.update_multi_precision
    def note_reduction(gradients, names, priority, *more):
        reduced.append((priority, trainer._params[int(names[0].split(".")[-1])].name))
        reduce_gradients(gradients, names, priority, *more)
    def note_update(index, *arrays):
        updated.append(len(index))
        update(index, *arrays)
    trainer_module.reduce_gradients = note_reduction
    trainer._optimizer.update_multi_precision = note_update
    with mx.autograd.record():
        loss = net(mx.nd.ones((1, 2))).sum()
    loss.backward()
    trainer.step(1)
    mx.nd.waitall()
    report([[name for _, name in sorted(reduced, reverse=True)], updated])
    """

    for names, updated in on_ranks(2, script):
        assert names == [f"net_dense{layer}_weight" for layer in range(12)]
        assert updated == [1] * 12


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ({}, ["1", None]),
        ({"MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN_BWD": "7"}, ["7", None]),
        ({"MXNET_EXEC_BULK_EXEC_TRAIN": "1"}, [None, "1"]),
    ],
)
def test_gradients_are_complete_one_by_one_unless_the_user_has_chosen(on_ranks, chosen, expected):
    script = """
    from rabit_mxnet.backward import CHANGED
    from rabit_mxnet.library import mxnet_setting
    names = ("MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN_BWD", "MXNET_EXEC_BULK_EXEC_TRAIN")
    report([[mxnet_setting(each) for each in names], CHANGED])
    """

    for settings, said in on_ranks(2, script, **chosen):
        assert settings == expected
        if chosen:
            assert said is None
        else:
            assert said.startswith("MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN_BWD is set to 1")
