"""Gradients of gradients (create_graph=True) through collectives."""

from __future__ import annotations

# The same functions of the inputs of all ranks in one process.
SCRIPT = """
size, rank = rabit.size(), rabit.rank()


def summed(xs):
    return [sum(xs)] * size


def averaged(xs):
    return [sum(xs) / size] * size


def part(rank):
    return slice(2 * rank, 2 * rank + 2)


cases = {
    "allreduce": (
        lambda x: rabit.allreduce(x, op=rabit.Sum, prescale_factor=3.0),
        lambda xs: summed([3 * x for x in xs]),
    ),
    "average": (lambda x: rabit.allreduce(x), averaged),
    "grouped allreduce": (
        lambda x: sum(rabit.grouped_allreduce([x, x * x])),
        lambda xs: averaged([x + x * x for x in xs]),
    ),
    "allgather": (
        lambda x: rabit.allgather(x[: rank + 1]),
        lambda xs: [torch.cat([x[: r + 1] for r, x in enumerate(xs)])] * size,
    ),
    "broadcast": (lambda x: rabit.broadcast(x, 1), lambda xs: [xs[1] + 0 * xs[0]] * size),
    "alltoall": (lambda x: rabit.alltoall(x), lambda xs: [torch.cat([x[part(r)] for x in xs]) for r in range(size)]),
    "alltoall of splits": (
        lambda x: rabit.alltoall(x, splits=[1, 3])[0],
        lambda xs: [torch.cat([x[:1] for x in xs]), torch.cat([x[1:] for x in xs])],
    ),
    "reducescatter": (
        lambda x: rabit.reducescatter(x, op=rabit.Average, postscale_factor=2.0),
        lambda xs: [2 * averaged(xs)[r][part(r)] for r in range(size)],
    ),
    "grouped reducescatter": (
        lambda x: sum(rabit.grouped_reducescatter([x, x * x], op=rabit.Sum)),
        lambda xs: [summed([x + x * x for x in xs])[r][part(r)] for r in range(size)],
    ),
}


def inputs():
    return [torch.arange(1.0, 5, dtype=torch.float64).add(r).requires_grad_() for r in range(size)]


def penalty(gradient, rank):
    return (gradient.pow(2) * (rank + 1)).sum()


answers = {}
for name, (collective, same) in cases.items():
    xs = inputs()
    losses = [y.pow(3).sum() * (r + 2) for r, y in enumerate(same([x * x for x in xs]))]
    gradients = torch.autograd.grad(sum(losses), xs, create_graph=True)
    expected = torch.autograd.grad(sum(penalty(g, r) for r, g in enumerate(gradients)), xs)[rank]
    x = inputs()[rank]
    loss = collective(x * x).pow(3).sum() * (rank + 2)
    (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
    (have,) = torch.autograd.grad(penalty(gradient, rank), x)
    answers[name] = torch.allclose(gradient, gradients[rank]) and torch.allclose(have, expected)
report(answers)
"""


def test_second_gradients_are_those_of_one_process_with_all_inputs(on_ranks):
    results = on_ranks(2, SCRIPT, RABIT_GRADIENTS="transpose")

    assert len(results[0]) == 9
    assert all(all(answers.values()) for answers in results), results


def test_second_gradients_follow_horovods_convention_as_the_first_do(on_ranks):
    """Rank 0 has what passes the gather, at the weight of a mean over the ranks' losses."""
    results = on_ranks(
        2,
        """
def run(function):
    x = torch.arange(1.0, 3).requires_grad_()
    (gradient,) = torch.autograd.grad(function(x * x).pow(2).sum(), x, create_graph=True)
    (x.sum() + gradient.pow(2).sum()).backward()
    return x.grad.tolist()

report([run(rabit.allreduce), run(lambda x: rabit.allgather(x)[:2]), run(lambda x: rabit.broadcast(x, 0))])
""",
    )

    assert results == [
        [[97, 3073], [65, 2049], [65, 2049]],
        [[97, 3073], [1, 1], [1, 1]],
    ]


def test_a_second_gradient_through_sync_batch_norm_is_refused(on_ranks):
    results = on_ranks(
        2,
        """
x = torch.arange(4.0).reshape(2, 2).add(rabit.rank()).requires_grad_()
(gradient,) = torch.autograd.grad(rabit.SyncBatchNorm(2)(x).pow(3).sum(), x, create_graph=True)
try:
    gradient.pow(2).sum().backward()
    report("no error")
except RuntimeError as error:
    report("once_differentiable" in str(error))
""",
    )

    assert results == [True, True]
