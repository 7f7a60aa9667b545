"""Every collective of rabit.jax under jit, grad, vmap and scan, against NumPy; then a model against one process.

The argument is how a call is made: "waits", "future" or "callback".
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax

import rabit
from rabit.integrations import xla

way = sys.argv[1]
xla._WAITS_BYTES = 1 << 40 if way == "waits" else -1
if way == "callback":
    xla._primitive = lambda: None
rabit.init()
rank, size = rabit.rank(), rabit.size()
ours = rabit.jax
random = np.random.default_rng(0)
whole = random.integers(-8, 8, (size, 2 * size, 3)).astype(np.float32)  # of all ranks
mine = jnp.asarray(whole[rank])
weights = random.integers(-3, 3, whole.shape).astype(np.float32)


def close(found, wanted):
    np.testing.assert_allclose(np.asarray(found, np.float32), wanted, rtol=1e-6, atol=1e-6)


def by_vmap(function, array):
    """`function` of two arrays at once, the second one doubled: shape and values of both."""
    found = jax.jit(jax.vmap(function, in_axes=1, out_axes=1))(
        jnp.stack([array, 2 * array], axis=1)
    )
    return found[:, 0], found[:, 1]


def gradient(function, cotangent):
    return jax.jit(jax.grad(lambda array: (function(array) * cotangent).sum()))(mine)


total = whole.sum(0)
gathered = whole.reshape(-1, 3)
parts = whole.reshape(size, size, 2, 3)  # from, to
exchanged = parts[:, rank].reshape(-1, 3)
weights_gathered = random.integers(-3, 3, (size, *gathered.shape)).astype(np.float32)
received = weights_gathered.sum(0).reshape(size, *whole.shape[1:])[rank]
back = weights.reshape(size, size, 2, 3)[:, rank].reshape(-1, 3)
at_root = weights.sum(0) if rank == 1 else np.zeros_like(total)
cases = {
    "sum": (lambda a: ours.allreduce(a, rabit.Sum), total, weights[rank], weights.sum(0)),
    "mean": (ours.allreduce, total / size, weights[rank], weights.mean(0)),
    "allgather": (ours.allgather, gathered, weights_gathered[rank], received),
    "broadcast": (lambda a: ours.broadcast(a, 1), whole[1], weights[rank], at_root),
    "alltoall": (ours.alltoall, exchanged, weights[rank], back),
}
for name, (function, wanted, cotangent, wanted_gradient) in cases.items():
    close(function(mine), wanted)
    close(jax.jit(function)(mine), wanted)
    first, second = by_vmap(function, mine)
    close(first, wanted)
    close(second, 2 * wanted)
    close(gradient(function, cotangent), wanted_gradient)
    _, rows = jax.jit(
        lambda a, f=function: jax.lax.scan(lambda c, _: (c + 1, f(c)), a, None, length=2)
    )(mine)
    close(rows[0], wanted)
    if rank == 0:
        print("equal", name, flush=True)

close(jax.jit(lambda a: ours.allreduce(a, rabit.Sum))(mine.astype(jnp.bfloat16)), total)
close(jax.jit(ours.allgather)(mine.astype(jnp.bfloat16)), gathered)
tree = jax.jit(ours.allreduce)({"a": mine, "b": [mine[0], mine * 2]})
close(tree["b"][1], 2 * total / size)

# A result takes the memory of its operand only where the program has no more need of that.
needed, summed, sent = jax.jit(lambda a: (a * 1, ours.allreduce(a, rabit.Sum), ours.broadcast(a, 1)))(mine)
for found, wanted in ((mine, whole[rank]), (needed, whole[rank]), (summed, total), (sent, whole[1])):
    close(found, wanted)
constant = jnp.arange(7.0)
for _ in range(2):  # A constant of the program is the same in its second run.
    close(jax.jit(lambda: ours.allreduce(constant, rabit.Sum))(), size * np.arange(7.0))

# Each rank takes its part of each batch: as one process that takes the whole.
features = random.normal(size=(36, 5)).astype(np.float32)
targets = features @ np.arange(5, dtype=np.float32)


def trained(optimizer, part):
    parameters = {"w": jnp.zeros(5), "b": jnp.zeros(())}
    state = optimizer.init(parameters)

    @jax.jit
    def step(parameters, state):
        def loss(p):
            return jnp.mean((features[part] @ p["w"] + p["b"] - targets[part]) ** 2)

        updates, state = optimizer.update(jax.grad(loss)(parameters), state, parameters)
        return optax.apply_updates(parameters, updates), state

    for _ in range(20):
        parameters, state = step(parameters, state)
    return parameters


together = trained(ours.DistributedOptimizer(optax.adam(0.1)), slice(rank, None, size))
alone = trained(optax.adam(0.1), slice(None))
np.testing.assert_allclose(together["w"], alone["w"], rtol=1e-4)
if rank == 0:
    print("trained", float(together["b"]), flush=True)

text = jax.jit(ours.allreduce).lower(mine).as_text()
assert ("callback" in text) == (way == "callback"), text
