"""Every method behind DistributedTrainer and DistributedOptimizer: the bits of ArrayTrainer, or a refusal."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
from support import front_ends
from support.front_ends import OF_STEPS, TEXTS

from rabit.testing import run_ranks

SPEC = importlib.util.find_spec("mxnet")
if SPEC is not None and SPEC.origin is not None:  # Else it is this folder, and all tests are skipped.
    import rabit_mxnet as rabit
    from rabit_mxnet.loaded import mx


def parameters_of(values):
    """Gluon's, whose gradients a test writes."""
    found = mx.gluon.ParameterDict()
    for name, value in values.items():
        parameter = found.get(name, shape=value.shape, dtype=value.dtype)
        parameter.initialize(mx.init.Zero(), mx.cpu())
        parameter.set_data(mx.nd.array(value, dtype=value.dtype))
    return found


def by_trainer(method, dtype):
    """The parameters at the end, and the name that the method's tensors have."""
    parameters = parameters_of(front_ends.first(dtype))
    trainer = rabit.DistributedTrainer(
        parameters, mx.optimizer.SGD(learning_rate=1.0), strategy=TEXTS[method]
    )
    for step in range(front_ends.STEPS):
        trainer.set_learning_rate(front_ends.rate(step))
        front_ends.before(trainer._method.strategy, rabit.rank(), step)
        with mx.autograd.record():
            parts = [loss(name, each.data(), step) for name, each in parameters.items()]
        mx.autograd.backward(parts)
        trainer.step(1)
        if front_ends.waits_for_averages(method):
            trainer.strategy_state_dict()
    trainer.strategy_state_dict()
    return {n: each.data().asnumpy() for n, each in parameters.items()}, trainer._method


def loss(name, value, step):
    given = mx.nd.array(front_ends.noise(name, rabit.rank(), step, value.dtype), dtype=value.dtype)
    return (value * (given + front_ends.SHARE * value.detach())).sum()


def by_optimizer(method, dtype):
    """The same for what Module uses: the optimizer is called for each parameter."""
    first = front_ends.first(dtype)
    weights = {name: mx.nd.array(each, dtype=dtype) for name, each in first.items()}
    optimizer = rabit.DistributedOptimizer(
        mx.optimizer.SGD(learning_rate=1.0), strategy=TEXTS[method]
    )
    for step in range(front_ends.STEPS):
        optimizer.set_learning_rate(front_ends.rate(step))
        front_ends.before(optimizer._method.strategy, rabit.rank(), step)
        for name, weight in weights.items():
            noise = front_ends.noise(name, rabit.rank(), step, dtype)
            gradient = mx.nd.array(noise, dtype=dtype) + front_ends.SHARE * weight
            optimizer.update(name, weight, gradient, optimizer.create_state(name, weight))
    optimizer._method.state_dict()
    return {name: each.asnumpy() for name, each in weights.items()}, optimizer._method


def differences(way, methods, dtype):
    """What is wrong on each rank, by method."""

    def on_rank(engine):
        wrong = {}
        for method in methods:
            values, made = way(method, dtype)
            expected = front_ends.by_arrays(engine, method, made._pipeline._name, dtype)
            wrong[method] = front_ends.difference(values, expected, dtype)
        return {method: each for method, each in wrong.items() if each}

    return run_ranks(2, on_rank)


def test_a_trainer_comes_to_the_bits_of_arrays_by_every_method():
    assert differences(by_trainer, TEXTS, np.float32) == [{}, {}]


def test_an_optimizer_comes_to_the_bits_of_arrays_by_every_method_for_gradients():
    assert differences(by_optimizer, sorted(set(TEXTS) - OF_STEPS), np.float32) == [{}, {}]


@pytest.mark.parametrize("method", sorted(OF_STEPS))
def test_an_optimizer_refuses_what_works_on_updated_parameters(method):
    def on_rank(engine):
        with pytest.raises(rabit.InvalidArgument, match="works on updated parameters"):
            rabit.DistributedOptimizer(mx.optimizer.SGD(), strategy=TEXTS[method])

    run_ranks(1, on_rank)
