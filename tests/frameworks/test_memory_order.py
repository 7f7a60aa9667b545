"""Ranks that hold one logical tensor in other orders of memory: logical values, or a Mismatch that names the orders."""

from __future__ import annotations

LAYOUTS = """
SHAPE = (4, 4, 4, 4)  # every permutation looks alike
rank = rabit.rank()


def of(rank):
    return torch.arange(256.0).reshape(SHAPE) * (rank + 1)


def permuted(x, *order):
    back = [order.index(axis) for axis in range(4)]
    return x.permute(order).contiguous().permute(back)


def sliced(x):
    wide = torch.zeros(*SHAPE[:-1], 8)
    wide[..., ::2] = x
    return wide[..., ::2]


LAYOUTS = {
    "transposed": lambda x: permuted(x, 1, 0, 2, 3),
    "column-major": lambda x: permuted(x, 3, 2, 1, 0),
    "channels_last": lambda x: x.to(memory_format=torch.channels_last),
    "sliced": sliced,
    "negated": lambda x: torch.complex(x, -x).conj().imag,
}
# In which the memory is dense, so that nothing is copied.
DENSE = ("transposed", "column-major", "channels_last")


def outcome(call, tensor, want, is_dense_alone):
    try:
        got = call(tensor)
    except rabit.Mismatch as error:
        return True if is_dense_alone and "with its axes in the order" in str(error) else str(error)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return bool(torch.equal(got.contiguous(), want)) or "other values"
"""

CALLS = """
import torch.distributed as dist

dist.init_process_group("rabit")
SUM = of(0) + of(1)
ROWS = torch.cat([of(0), of(1)])
MINE = SUM[2 * rank : 2 * rank + 2]
PARTS = torch.cat([of(source)[2 * rank : 2 * rank + 2] for source in range(2)])


def done(value):
    return lambda call: (call, value)[1]


def in_place(call, *arguments, **options):
    def run(x):
        call(x, *arguments, **options)
        return x
    return run


def into(shape, call):
    def run(x):
        made = torch.empty(shape)
        call(made, x)
        return made
    return run


def message(x):
    if rank == 0:
        rabit.send(x, 1, "message")
        return of(0)
    return rabit.recv(x, 0, "message")


def through_gather(x):
    parts = [torch.empty(SHAPE) for _ in range(2)] if rank == 0 else None
    dist.gather(x, parts)
    return torch.cat(parts) if rank == 0 else ROWS


def through_scatter(x):
    made = torch.empty(SHAPE)
    dist.scatter(made, [x, x] if rank == 0 else None)
    return made


def through_lists(call):
    def run(x):
        made = [torch.empty(SHAPE) for _ in range(2)]
        call(made, x)
        return torch.cat(made)
    return run


def on_root(result, want):
    return want if result is None else result


def through_p2p(x):
    if rank == 0:
        dist.send(x, 1)
        return of(0)
    dist.recv(x, 0)
    return x


calls = {
    "allreduce": (lambda x: rabit.allreduce(x, op=rabit.Sum, name="a"), SUM),
    "allreduce_": (in_place(rabit.allreduce_, op=rabit.Sum, name="a_"), SUM),
    "allreduce_async_": (lambda x: rabit.allreduce_async_(x, op=rabit.Sum, name="aa").wait(), SUM),
    "coded": (lambda x: rabit.allreduce(x / 64, op=rabit.Sum, name="c", compression=rabit.Compression.fp16) * 64, SUM),
    "grouped": (lambda x: rabit.grouped_allreduce([x, x], op=rabit.Sum, name="g")[1], SUM),
    "grouped_": (lambda x: rabit.grouped_allreduce_([x, x.clone()], op=rabit.Sum, name="g_")[0], SUM),
    "differentiable": (lambda x: rabit.allreduce(x.requires_grad_(), op=rabit.Sum, name="d").detach(), SUM),
    "reduce": (lambda x: on_root(rabit.reduce(x, 0, op=rabit.Sum, name="r"), SUM), SUM),
    "broadcast": (lambda x: rabit.broadcast(x, 0, "b"), of(0)),
    "broadcast_": (in_place(rabit.broadcast_, 0, "b_"), of(0)),
    "allgather": (lambda x: rabit.allgather(x, "ag"), ROWS),
    "grouped_allgather": (lambda x: rabit.grouped_allgather([x, x], "gag")[1], ROWS),
    "reducescatter": (lambda x: rabit.reducescatter(x, "rs", op=rabit.Sum), MINE),
    "grouped_reducescatter": (lambda x: rabit.grouped_reducescatter([x, x], "grs", op=rabit.Sum)[1], MINE),
    "alltoall": (lambda x: rabit.alltoall(x, None, "at"), PARTS),
    "gather": (lambda x: on_root(rabit.gather(x, 0, "ga"), ROWS), ROWS),
    "scatter": (lambda x: rabit.scatter(x, 0, None, "sc"), of(0)[2 * rank : 2 * rank + 2]),
    "message": (message, of(0)),
    "numpy front": (lambda x: torch.from_numpy(numpy_rabit.allreduce(x.resolve_neg(), op=rabit.Sum, name="np")), SUM),
    "push_pull": (lambda x: rabit.push_pull(x, average=False, name="pp"), SUM),
    "dist.all_reduce": (in_place(dist.all_reduce), SUM),
    "dist.all_reduce async": (lambda x: (dist.all_reduce(x, async_op=True).wait(), x)[1], SUM),
    "dist.reduce": (lambda x: (dist.reduce(x, 0), x if rank == 0 else SUM)[1], SUM),
    "dist.broadcast": (in_place(dist.broadcast, 0), of(0)),
    "dist.all_gather": (through_lists(dist.all_gather), ROWS),
    "dist.all_gather_into_tensor": (into((8, 4, 4, 4), dist.all_gather_into_tensor), ROWS),
    "dist.reduce_scatter_tensor": (into((2, 4, 4, 4), dist.reduce_scatter_tensor), MINE),
    "dist.all_to_all_single": (into(SHAPE, dist.all_to_all_single), PARTS),
    "dist.gather": (through_gather, ROWS),
    "dist.scatter": (through_scatter, of(0)),
    "dist.send": (through_p2p, of(0)),
}
found = {}
for name, (call, want) in calls.items():
    for layout, lay in LAYOUTS.items():
        for who in ((0,), (1,), (0, 1)):
            mine = lay(of(rank)) if rank in who else of(rank)
            is_dense_alone = len(who) == 1 and layout in DENSE
            result = outcome(call, mine, want, is_dense_alone)
            if result is not True:
                found[f"{name}, {layout} on {who}"] = result
    # What was kept of the call before does not take memory of another order.
    result = outcome(call, of(rank), want, False)
    if result is not True:
        found[f"{name}, row-major again"] = result
report(found)
dist.destroy_process_group()
"""


def test_every_call_works_on_logical_values(on_ranks):
    results = on_ranks(2, "import rabit as numpy_rabit\n" + LAYOUTS + CALLS)

    assert results == [{}, {}]


ORDERED = """
failed = {}
for layout, lay in LAYOUTS.items():
    x = lay(of(rank))
    for name, call in {
        "allreduce": lambda: rabit.ordered_allreduce_(x),
        "broadcast": lambda: rabit.ordered_broadcast_(x, 0),
        "allgather": lambda: rabit.ordered_allgather_into(torch.empty(8, 4, 4, 4), x),
    }.items():
        try:
            call()
        except rabit.InvalidArgument as error:
            continue
        failed[f"{name} {layout}"] = "not refused"
report(failed)
"""


def test_ordered_calls_refuse_memory_that_is_not_row_major(on_ranks):
    assert on_ranks(2, LAYOUTS + ORDERED) == [{}, {}]


TRAINING = """
def trained(layout, who, count, options):
    weights = []
    for index in range(count):
        start = torch.zeros(SHAPE)
        weights.append(torch.nn.Parameter(LAYOUTS[layout](start) if rank in who else start))
    named = [(f"w{index}", weight) for index, weight in enumerate(weights)]
    optimizer = rabit.DistributedOptimizer(torch.optim.SGD(weights, lr=1.0), named_parameters=named, **options)
    for step in range(2):
        if step == 1:  # What is prepared fits the memory of then, and not that of now.
            weights[0].data = weights[0].data.contiguous()
        try:
            sum((weight * of(rank)).sum() for weight in weights).backward()
            optimizer.step()
            optimizer.zero_grad()
            found = [weight.detach().contiguous() for weight in weights]
        except rabit.Mismatch as error:
            is_expected = who == (0,) and "with its axes in the order" in str(error)
            return [] if is_expected else [f"step {step}: {error}"]
        if not all(torch.equal(value, -(of(0) + of(1)) / 2 * (step + 1)) for value in found):
            return [f"step {step}: other values"]
    return []


report([
    (options, layout, who, count, wrong)
    for options in ({}, {"overlap": "next-forward"}, {"overlap": "reduce-scatter"})
    for count in (1, 3)
    for layout in DENSE
    for who in ((0,), (0, 1))
    for wrong in trained(layout, who, count, options)
])
"""


def test_the_optimizer_works_on_logical_values(on_ranks):
    assert on_ranks(2, LAYOUTS + TRAINING) == [[], []]


# FSDP reduces gradients by reduce_scatter; what it adds up there as bytes, nobody sees.
REDUCING = """
import torch.distributed as dist

dist.init_process_group("rabit")
rank = rabit.rank()
OPS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND")


def scattered(x, op):
    dist.reduce_scatter_tensor(x.new_empty(x.shape[0] // 2), x, op=op)


def from_list(x, op):
    dist.reduce_scatter(x.new_empty(2), [x[:2].clone(), x[2:].clone()], op=op)


def uneven(x, op):
    dist.reduce_scatter(x.new_empty(1 + 2 * rank), [x[:1].clone(), x[1:].clone()], op=op)


def coalesced(x, op):
    with dist._coalescing_manager(device=torch.device("cpu")):
        dist.reduce_scatter_tensor(x.new_empty(2), x, op=op)


CALLS = {
    "all_reduce": lambda x, op: dist.all_reduce(x, op=op),
    "reduce": lambda x, op: dist.reduce(x, 0, op=op),
    "reduce_scatter_tensor": scattered,
    "reduce_scatter": from_list,
    "uneven reduce_scatter": uneven,
    "coalesced": coalesced,
    "rabit.allreduce": lambda x, op: rabit.allreduce(x, op=MINE[op.name], name="a"),
    "rabit.allreduce_": lambda x, op: rabit.allreduce_(x, op=MINE[op.name], name="b"),
    "rabit.grouped_allreduce": lambda x, op: rabit.grouped_allreduce([x], op=MINE[op.name], name="c"),
    "rabit.reduce": lambda x, op: rabit.reduce(x, 0, op=MINE[op.name], name="d"),
    "rabit.reducescatter": lambda x, op: rabit.reducescatter(x, op=MINE[op.name], name="e"),
    "rabit.ordered_allreduce_": lambda x, op: rabit.ordered_allreduce_(x, MINE[op.name]),
}
MINE = dict(zip(OPS, (rabit.Sum, rabit.Average, rabit.Product, rabit.Min, rabit.Max, rabit.BitwiseAnd)))
ONES = torch.ones(4)
TYPES = {
    "uint32": ONES.to(torch.int32).view(torch.uint32),
    "uint64": ONES.to(torch.int64).view(torch.uint64),
    "float8_e4m3fn": ONES.to(torch.float8_e4m3fn),
    "float8_e5m2": ONES.to(torch.float8_e5m2),
    "complex64": torch.full((4,), 1 + 2j, dtype=torch.complex64),
    "complex128": torch.full((4,), 1 + 2j, dtype=torch.complex128),
}
found = []
for name, call in CALLS.items():
    for kind, value in TYPES.items():
        for op in OPS:
            if kind.startswith("complex") and op in ("SUM", "AVG"):
                continue
            try:
                call(value.clone(), getattr(dist.ReduceOp, op))
            except rabit.Unsupported as error:
                if "is not defined" in str(error) and kind in str(error):
                    continue
                found.append([name, kind, op, str(error)])
                continue
            except ValueError:  # of torch's, before any backend
                if name == "all_reduce" and kind.startswith("complex"):
                    continue
                raise
            found.append([name, kind, op, "not refused"])
# Complex sums, and what is exchanged alone.
z = torch.full((4,), 1 + 2j) * (rank + 1)
for conjugated in (False, True):
    mine = z.conj() if conjugated else z.clone()
    part = torch.empty(2, dtype=z.dtype)
    dist.reduce_scatter_tensor(part, mine)
    results = [part, rabit.allreduce(mine, op=rabit.Sum, name="z")[:2]]
    results.append(rabit.reducescatter(mine, op=rabit.Sum, name="y"))
    written = z.conj() if conjugated else z.clone()
    results.append(rabit.allreduce_(written, op=rabit.Sum, name="x")[:2])
    if not conjugated:  # which torch itself refuses
        dist.all_reduce(mine)
        results.append(mine[:2])
    want = (3 - 6j) if conjugated else (3 + 6j)
    found += [["sum", conjugated, index] for index, got in enumerate(results) if not bool((got == want).all())]
for kind, value in TYPES.items():
    mine = torch.stack([value, value])

    def is_mine(value):
        return value.dtype == mine.dtype and value.view(torch.uint8).equal(mine.view(torch.uint8))

    def message():
        return rabit.send(mine, 1, "n") is None if rank == 0 else is_mine(rabit.recv(torch.empty_like(mine), 0, "n"))

    calls = {
        "allgather": lambda: is_mine(rabit.allgather(mine, "g")[2:]),
        "grouped_allgather": lambda: is_mine(rabit.grouped_allgather([mine], "h")[0][2:]),
        "broadcast": lambda: is_mine(rabit.broadcast(mine, 0, "i")),
        "broadcast_": lambda: is_mine(rabit.broadcast_(mine.clone(), 1, "j")),
        "alltoall": lambda: is_mine(rabit.alltoall(mine, None, "k")),
        "gather": lambda: (rabit.gather(mine, 0, "l") is None) == (rank == 1),
        "scatter": lambda: is_mine(rabit.scatter(torch.cat([mine, mine]), 0, None, "m")),
        "message": message,
        "ordered": lambda: is_mine(rabit.ordered_allgather_into(torch.empty(4, 4, dtype=mine.dtype), mine)[2:]),
    }
    found += [["exchange", kind, name] for name, call in calls.items() if not call()]
report(found)
dist.destroy_process_group()
"""


def test_one_table_says_what_can_be_combined(on_ranks):
    assert on_ranks(2, REDUCING) == [[], []]
