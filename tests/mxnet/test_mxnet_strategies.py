"""Gradient methods behind DistributedTrainer and DistributedOptimizer."""

from __future__ import annotations

SETUP = """
from rabit import strategies as methods


def every(exchange):
    return methods.Synchronous(exchange)


def topk(ratio):
    return methods.Gathered(methods.LargestEntries(ratio))


def gluon(strategy=None, steps=6, reload=None, dtype="float64", **extra):
    mx.random.seed(7)
    np.random.seed(7)
    net = mx.gluon.nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(mx.gluon.nn.Dense(16, in_units=8, activation="tanh"), mx.gluon.nn.Dense(5, in_units=16))
    net.cast(dtype)
    net.initialize(mx.init.Xavier())
    params = net.collect_params()
    rabit.broadcast_parameters(params, root_rank=0)
    trainer = rabit.DistributedTrainer(params, "sgd", {"learning_rate": 0.1}, strategy=strategy, **extra)
    loss_of = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    for step in range(steps):
        rng = np.random.RandomState(100 * step + rank)
        data, label = mx.nd.array(rng.randn(4, 8), dtype=dtype), mx.nd.array(rng.randint(0, 5, 4))
        if step == reload:
            saved = trainer.strategy_state_dict()
            trainer._method = type(trainer._method)(methods.make(reload_as), rabit.global_process_set)
            trainer.load_strategy_state_dict(saved)
        with mx.autograd.record():
            loss = loss_of(net(data), label)
        loss.backward()
        trainer.step(4)
    return np.concatenate([p.data().asnumpy().astype("float64").reshape(-1) for p in params.values()])


def module(strategy=None, **extra):
    x = mx.sym.FullyConnected(mx.sym.var("data", dtype="float64"), num_hidden=5, name="out")
    symbol = mx.sym.SoftmaxOutput(x, mx.sym.var("softmax_label", dtype="float64"), name="softmax")
    job = mx.mod.Module(symbol)
    job.bind(
        [mx.io.DataDesc("data", (4, 8), dtype="float64")],
        [mx.io.DataDesc("softmax_label", (4,), dtype="float64")],
    )
    mx.random.seed(11)
    job.init_params(mx.init.Xavier())
    weights, rest = job.get_params()
    rabit.broadcast_parameters(weights, root_rank=0)
    job.set_params(weights, rest)
    optimizer = mx.optimizer.create("sgd", learning_rate=0.1, rescale_grad=0.25)
    optimizer = rabit.DistributedOptimizer(optimizer, strategy=strategy, **extra)
    job.init_optimizer(kvstore=None, optimizer=optimizer)
    for step in range(6):
        rng = np.random.RandomState(100 * step + rank)
        label = rng.randint(0, 5, 4).astype("float64")
        job.forward_backward(
            mx.io.DataBatch(
                [mx.nd.array(rng.randn(4, 8), dtype="float64")], [mx.nd.array(label, dtype="float64")]
            )
        )
        job.update()
    weights, _ = job.get_params()
    return np.concatenate([weights[name].asnumpy().reshape(-1) for name in sorted(weights)])


def distance(a, b):
    return float(np.abs(a - b).max())


def spread(flat):
    return max(distance(each, flat) for each in rabit.allgather_object(flat))


def refused(call):
    try:
        call()
    except rabit.InvalidArgument as error:
        return str(error)
"""


def test_methods_equal_what_they_must(on_ranks):
    found = on_ranks(
        2,
        SETUP
        + """
mean, plain = gluon(), module()
full = methods.ErrorFeedback(methods.PowerSGD(99, min_rate=0))
report({
    "mean": distance(gluon("mean"), mean),
    "power": distance(gluon(every(full)), mean),
    "local": distance(gluon(methods.LocalSGD(1)), mean),
    "module": distance(module(every(methods.ErrorFeedback(topk(1.0)))), plain),
})
""",
    )

    for rank in found:
        assert {name: value for name, value in rank.items() if value > 1e-12} == {}


def test_ranks_stay_together_and_a_saved_state_goes_on(on_ranks):
    found = on_ranks(
        2,
        SETUP
        + """
reload_as = "sign:block=64,small=0"
mean = gluon()
sent, again = gluon(reload_as), gluon(reload_as, reload=3)
native = gluon("sign:block=64,small=0", dtype="float32")
every_third = gluon(methods.LocalSGD(3))
report([
    [spread(each) for each in (sent, native, every_third, module("topk:ratio=0.2,small=0"))],
    distance(sent, again),
    [distance(sent, mean), distance(every_third, mean), distance(native, gluon(dtype="float32"))],
])
""",
    )

    for spreads, reloaded, apart in found:
        assert spreads == [0, 0, 0, 0]
        assert reloaded == 0
        assert min(apart) > 0 and max(apart) < 1


def test_the_configured_method_is_taken_and_what_cannot_work_is_refused(on_ranks):
    (found,) = on_ranks(
        1,
        SETUP
        + """
report([
    distance(gluon(), gluon("topk:ratio=0.2,small=0")) == 0,
    refused(lambda: gluon("topk", num_groups=2)),
    refused(lambda: module(methods.LocalSGD(2))),
    refused(lambda: rabit.DistributedOptimizer(mx.optimizer.create("adam"), strategy="dgc")),
    refused(lambda: rabit.DistributedOptimizer(mx.optimizer.create("sgd", wd=0.1), strategy="zero-one-adam")),
])
""",
        RABIT_STRATEGY="topk:ratio=0.2,small=0",
    )

    assert found[0] is True
    assert "says how gradients travel, and so do compression" in found[1]
    assert "LocalSGD works on updated parameters" in found[2]
    assert "keeps momentum by itself (Synchronous), and Adam would add its own" in found[3]
    assert "takes the step by itself (ZeroOneAdam), and wd of SGD would be lost" in found[4]


def test_other_methods_are_a_mismatch_on_every_rank(on_ranks):
    found = on_ranks(
        2,
        SETUP
        + """
said = []
for train, mine in ((gluon, "local:every=2"), (module, "topk:ratio=0.2,small=0")):
    try:
        train(mine if rank else None)
    except rabit.Mismatch as error:
        said.append(str(error))
report(said)
""",
    )

    for said in found:
        assert len(said) == 2
        assert "rank 0 by no strategy, rank 1 by 'local:every=2'" in said[0]
        assert "rank 0 by no strategy, rank 1 by 'topk:ratio=0.2,small=0'" in said[1]


def test_other_shapes_are_a_mismatch_on_every_rank(on_ranks):
    results = on_ranks(
        2,
        SETUP
        + """
errors = []
net = mx.gluon.nn.Dense(3, in_units=8 + 2 * rank, prefix="layer_")
net.initialize(mx.init.One())
trainer = rabit.DistributedTrainer(net.collect_params(), "sgd", strategy="demo:chunk=8,count=2")
try:
    with mx.autograd.record():
        loss = net(mx.nd.ones((2, 8 + 2 * rank))).sum()
    loss.backward()
    trainer.step(2)
except rabit.Mismatch as error:
    errors.append(str(error))
report(errors)
""",
    )

    for (text,) in results:
        assert "has shape (3, 8) on rank 0 and (3, 10) on rank 1" in text
