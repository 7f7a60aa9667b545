"""Calls that come again are made by the extension module, and give what the first one gave."""

from __future__ import annotations

import pytest
import torch
from torch._C import _distributed_c10d as c10d

needs_exchange = pytest.mark.skipif(
    not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"),
    reason="before torch 2.10 tensors offer no exchange API, and every call is prepared anew",
)
needs_async_op = pytest.mark.skipif(
    not hasattr(c10d.AllreduceOptions(), "asyncOp"),
    reason="this torch does not say whether a collective blocks",
)

PROLOGUE = """
import numpy as np
import rabit as core

native = core.default_engine()._native
made = []

class Counted:
    def __init__(self, calls):
        self.calls = calls
    def __getattr__(self, name):
        def call(*arguments):
            answer = getattr(self.calls, name)(*arguments)
            made.append((name, answer is not False))
            return answer
        return call

def taken(function):
    made.clear()
    result = function()
    return [name for name, fits in made if fits], result
"""
COUNTED = PROLOGUE + "native.calls = Counted(native.calls)\n"


@needs_exchange
def test_every_form_of_allreduce_comes_again_through_the_extension_module(on_ranks):
    results = on_ranks(
        2,
        COUNTED
        + """
rank = rabit.rank()
new = lambda: torch.full((2, 3), rank + 1.0)
forms = {
    "in place": lambda: rabit.allreduce_(new(), name="a", op=rabit.Sum),
    "new": lambda: rabit.allreduce(new(), name="b", op=rabit.Sum),
    "async in place": lambda: rabit.synchronize(rabit.allreduce_async_(new(), name="c", op=rabit.Sum)),
    "async": lambda: rabit.synchronize(rabit.allreduce_async(new(), name="d", op=rabit.Sum)),
    "unnamed": lambda: rabit.allreduce_(new(), op=rabit.Sum),
    "core": lambda: core.allreduce_(new(), name="e", op=core.Sum),
    "array": lambda: core.allreduce(new().numpy(), name="f", op=core.Sum),
    "array unnamed": lambda: core.synchronize(core.allreduce_async_(new().numpy(), op=core.Sum)),
}
answers = {}
for form, call in forms.items():
    call()
    for _ in range(2):
        names, result = taken(call)
        answers[form] = names == ["start" if "async" in form or form == "array unnamed" else "run"] \
            and bool((result == 3).all()) and tuple(result.shape) == (2, 3)
report(answers)
""",
    )

    assert all(all(answers.values()) for answers in results), results


@needs_exchange
def test_grouped_allreduces_come_again_in_one_call(on_ranks):
    results = on_ranks(
        2,
        COUNTED
        + """
rank = rabit.rank()
new = lambda: [torch.full((2, index + 1), rank + 1.0 + index) for index in range(5)]
arrays = lambda: [tensor.numpy() for tensor in new()]
sum_ = {"op": rabit.Sum}
forms = {
    "in place": lambda: rabit.grouped_allreduce_(new(), name="a", **sum_),
    "new": lambda: rabit.synchronize(rabit.grouped_allreduce_async(new(), name="b", **sum_)),
    "blocking": lambda: rabit.grouped_allreduce(new(), name="c", **sum_),
    "arrays in place": lambda: core.grouped_allreduce_(arrays(), name="d", **sum_),
    "arrays": lambda: core.grouped_allreduce(arrays(), name="e", **sum_),
}
answers = {}
for form, call in forms.items():
    call()
    for _ in range(2):
        names, results = taken(call)
        answers[form] = names.count("start_several") == 1 and len(results) == 5 and all(
            tuple(each.shape) == (2, index + 1) and bool((each == 3 + 2 * index).all())
            for index, each in enumerate(results)
        )
tensors = new()
names, handle = taken(lambda: rabit.grouped_allreduce_async_(tensors, name="a", **sum_))
answers["same list"] = all(a is b for a, b in zip(rabit.synchronize(handle), tensors, strict=True))
report(answers)
""",
    )

    assert all(all(answers.values()) for answers in results), results


def test_grouped_gathers_and_scatters_of_arrays_come_again_in_one_call(on_ranks):
    results = on_ranks(
        2,
        COUNTED
        + """
import numpy as np
rank = rabit.rank()
shapes = [(3, 2), (1,), (4, 1, 2), (0, 5), (2,)]
answers = []
def check(form, call, expected, is_again):
    names, results = taken(call)
    fits = all(a.dtype == b.dtype and a.shape == b.shape and (a == b).all()
               for a, b in zip(results, expected, strict=True))
    answers.append((form, fits, (names.count("start_several") == 1) == is_again))
for step in range(3):
    full = [np.full(shape, step + 1.0) for shape in shapes]
    shares = [np.array_split(3 * each, 2)[rank] for each in full]
    mine = [(rank + 1) * each for each in full]
    scatter = lambda op=rabit.Sum: core.grouped_reducescatter(mine, name="s", op=op)
    check("scatter", scatter, shares, step > 0)
    whole = [np.concatenate([each, 2 * each]) for each in full]
    check("gather", lambda: core.grouped_allgather(mine, name="g"), whole, step > 0)
# Rows that differ from those before, on one rank or both; another operation under the name.
before = None
for rows in ((2, 2), (2, 3), (1, 0)):
    parts = [np.full((each,), float(each)) for each in rows]
    check("rows", lambda: core.grouped_allgather([parts[rank]] * 5, name="g"),
          [np.concatenate(parts)] * 5, rows[rank] == before)
    before = rows[rank]
check("op", lambda: scatter(rabit.Max), [2 * each / 3 for each in shares], False)
scalar = [np.float32(rank + 1)]
for _ in range(2):
    try:
        core.grouped_reducescatter(scalar, name="z", op=rabit.Sum)
        answers.append(("scalar", False, False))
    except rabit.InvalidArgument as error:
        answers.append(("scalar", "has no rows to divide" in str(error), True))
report([each for each in answers if not (each[1] and each[2])])
""",
    )

    assert results == [[], []]


@needs_exchange
def test_other_collectives_come_again_through_the_extension_module(on_ranks):
    results = on_ranks(
        2,
        COUNTED
        + """
rank = rabit.rank()
row = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]])
new = lambda: row * (rank + 1)
array = lambda: new().numpy()
root = 2 * row
rows = torch.cat([row, 2 * row])
swapped = torch.cat([row[2 * rank : 2 * rank + 2], 2 * row[2 * rank : 2 * rank + 2]])
part = 3 * row[2 * rank : 2 * rank + 2]
sum_ = {"op": rabit.Sum}
cases = {
    "allgather": (rows, (), {}),
    "broadcast": (root, (1,), {}),
    "broadcast_": (root, (1,), {}),
    "alltoall": (swapped, (), {}),
    "reducescatter": (part, (), sum_),
}
answers = []
for name, (expected, positional, named) in cases.items():
    trailing = "_" if name.endswith("_") else ""
    start = name.removesuffix("_") + "_async" + trailing
    for module, source in ((rabit, new), (core, new), (core, array)):
        for label in ("x", None):
            calls = {
                "run": lambda: getattr(module, name)(source(), *positional, name=label, **named),
                "start": lambda: module.synchronize(
                    getattr(module, start)(source(), *positional, name=label, **named)
                ),
            }
            for how, call in calls.items():
                call()
                for _ in range(2):
                    names, result = taken(call)
                    # What is not an array has no array to be broadcast into.
                    anew = module is core and source is new and name == "broadcast"
                    if not anew and names[0] != how:
                        answers.append((name, module.__name__, label, names))
                    result = torch.as_tensor(result)
                    if not torch.equal(result, expected):
                        answers.append((name, module.__name__, label, result.tolist()))
core.barrier()
names, _ = taken(core.barrier)
answers += [] if names == ["run"] else [names]
report(answers)
""",
    )

    assert results == [[], []]


@needs_exchange
def test_what_is_gathered_again_may_have_other_rows_on_the_other_rank(on_ranks):
    results = on_ranks(
        2,
        COUNTED
        + """
rank = rabit.rank()
answers = []
for step in range(6):
    counts = (2, 1 + step // 2)
    parts = [torch.full((count, 3), float(10 * index + step)) for index, count in enumerate(counts)]
    whole = torch.cat(parts)
    for gather, part in ((rabit.allgather, parts[rank]), (core.allgather, parts[rank].numpy())):
        result = torch.as_tensor(gather(part, name="g"))
        if not torch.equal(result, whole):
            answers.append((step, result.tolist()))
    outer = torch.as_tensor(core.allgather(torch.tensor(rank), name="scalar"))
    if outer.tolist() != [0, 1]:
        answers.append((step, outer.tolist()))
report(answers)
""",
    )

    assert results == [[], []]


@needs_exchange
def test_torchs_groups_of_gathers_and_scatters_come_again_in_one_call(on_ranks):
    results = on_ranks(
        2,
        COUNTED
        + """
rank = rabit.rank()
answers = []
for step in range(3):
    full = [torch.full((count, 2), step + 1.0) for count in (2, 3, 1)]
    mine = [(rank + 1) * each for each in full]
    scattered = lambda: rabit.grouped_reducescatter(mine, name="s", op=rabit.Sum)
    gathered = lambda: rabit.grouped_allgather(mine, name="g")
    shares = [torch.tensor_split(3 * each, 2)[rank] for each in full]
    whole = [torch.cat([each, 2 * each]) for each in full]
    for call, expected in ((scattered, shares), (gathered, whole)):
        names, found = taken(call)
        fits = all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
        if not fits or (names.count("start_several") == 1) != (step > 0):
            answers.append((step, names, [each.tolist() for each in found]))
report(answers)
""",
    )

    assert results == [[], []]


def test_a_group_of_other_tensors_is_prepared_anew(on_ranks):
    results = on_ranks(
        2,
        COUNTED
        + """
groups = [
    [torch.ones(4), torch.ones(3)],
    [torch.ones(3), torch.ones(4)],
    [torch.ones(4), torch.ones(3), torch.ones(1)],
    [torch.ones(6)[::2], torch.ones(3)],
    [torch.ones(4, dtype=torch.int64), torch.nn.Parameter(torch.ones(3))],
    [torch.ones(0), torch.ones(())],
]
answers = []
for _ in range(2):
    for group in groups:
        for tensor in group:
            tensor.data.fill_(1)
        result = rabit.grouped_allreduce_(group, name="x", op=rabit.Sum)
        answers.append(all(a is b and bool((a == 2).all()) for a, b in zip(result, group, strict=True)))
        result = rabit.grouped_allreduce(group, name="y", op=rabit.Sum)
        answers.append(all(bool((each == 4).all()) for each in result))
names, _ = taken(lambda: rabit.grouped_allreduce_([torch.ones(4), torch.ones(3)]))
report(answers + ["start_several" not in names])
""",
    )

    assert all(all(answers) for answers in results), results


def test_a_group_that_nobody_waits_for_finishes_and_may_come_again(on_ranks):
    results = on_ranks(
        2,
        COUNTED
        + """
import gc

new = lambda: [torch.ones(4), torch.ones(3)]
rabit.grouped_allreduce_(new(), name="x", op=rabit.Sum)
for round in range(20):
    rabit.grouped_allreduce_async_(new(), name=f"x.{round % 2}" if round < 4 else "x", op=rabit.Sum)
    core.barrier(name="submitted")
    # The drop hands the operations to the engine: when it has swept them, nothing is in flight.
    while native.orphans:
        native.sweep()
gc.collect()
last = rabit.grouped_allreduce_(new(), name="x", op=rabit.Sum)
report([all(bool((each == 2).all()) for each in last), len(native.orphans)])
""",
    )

    assert results == [[True, 0]] * 2


def test_a_call_that_comes_again_with_another_tensor_is_prepared_anew(on_ranks):
    results = on_ranks(
        2,
        COUNTED
        + """
tensors = [
    torch.ones(4), torch.ones(2, 2), torch.ones(4, dtype=torch.int64),
    torch.ones(2, 3, 4, 5).contiguous(memory_format=torch.channels_last), torch.ones(6)[::2],
    torch.ones(4, dtype=torch.bfloat16), torch.nn.Parameter(torch.ones(4)), torch.ones(()), torch.ones(0),
    torch.ones(4, requires_grad=True),
]
answers = []
for _ in range(2):
    for tensor in tensors:
        result = rabit.allreduce_(tensor, name="x", op=rabit.Sum)
        answers.append(result is tensor)
        tensor = torch.ones_like(tensor)
        result = rabit.allreduce(tensor, name="y", op=rabit.Sum)
        answers.append(result.dtype == tensor.dtype and result.shape == tensor.shape)
        answers.append(bool((result == 2).all()))
answers += [bool((tensor == 4).all()) for tensor in tensors]
names, _ = taken(lambda: rabit.allreduce_(torch.ones(4), name="z"))
report(answers + [names == []])
""",
    )

    assert all(all(answers) for answers in results), results


@needs_exchange
def test_gradients_flow_through_a_call_that_comes_again(on_ranks):
    results = on_ranks(
        2,
        COUNTED
        + """
gradients = []
for _ in range(3):
    leaf = torch.full((3,), rabit.rank() + 1.0, requires_grad=True)
    names, total = taken(lambda: rabit.allreduce(leaf * 2, name="x", op=rabit.Sum))
    total.sum().backward()
    gradients.append([names, total.tolist(), leaf.grad.tolist()])
report(gradients[1:])
""",
    )

    for gradients in results:
        for names, total, gradient in gradients:
            assert names == ["run"]
            assert total == [6.0] * 3
            assert len(set(gradient)) == 1
            assert gradient[0] > 0


@pytest.mark.parametrize("prepare", ["native.calls = None", "native.calls = Counted(native.calls)"])
def test_errors_are_the_same_on_both_ways(on_ranks, prepare):
    results = on_ranks(
        2,
        PROLOGUE
        + prepare
        + """
rank = rabit.rank()
messages = []
for _ in range(2):
    rabit.allreduce_(torch.ones(4), name="x", op=rabit.Sum)
try:
    rabit.allreduce_(torch.ones(4), name="x", op=rabit.Max if rank else rabit.Sum)
except core.Mismatch as error:
    messages.append("'allreduce.x'" in str(error))
for _ in range(2):
    rabit.grouped_allreduce_([torch.ones(4), torch.ones(2)], name="g", op=rabit.Sum)
try:
    rabit.grouped_allreduce_([torch.ones(4), torch.ones(3 if rank else 2)], name="g", op=rabit.Sum)
except core.Mismatch as error:
    messages.append("'allreduce.g.1'" in str(error))
handle = rabit.allreduce_async_(torch.ones(4), name="x")
other = rabit.allreduce_async_(torch.ones(4), name="y")
rabit.synchronize(other)
rabit.synchronize(handle)
if rank == 0:
    first = rabit.allreduce_async_(torch.ones(4), name="y")
    try:
        rabit.allreduce_async_(torch.ones(4), name="y")
    except core.InvalidArgument as error:
        messages.append("still in flight" in str(error))
    core.barrier(name="told")
else:
    core.barrier(name="told")
    first = rabit.allreduce_async_(torch.ones(4), name="y")
rabit.synchronize(first)
report(messages)
""",
    )

    assert results == [[True, True, True], [True, True]]


def test_memory_that_is_read_only_is_refused(on_ranks):
    results = on_ranks(
        1,
        COUNTED
        + """
array = np.ones(4, np.float32)
core.allreduce_(array, name="x")
array.flags.writeable = False
try:
    core.allreduce_(array, name="x")
except core.InvalidArgument as error:
    report("read-only" in str(error))
""",
    )

    assert results == [True]


def test_wait_any_and_futures_do_not_wait_for_the_oldest(on_ranks):
    results = on_ranks(
        2,
        """
import rabit as core
from rabit_torch.distributed.futures import completion_of

engine = core.default_engine()
array = lambda: torch.ones(4).numpy()
answers = []
if rabit.rank() == 0:
    held = core.allreduce_async_(array(), name="held")
    late = completion_of(engine).future([held], lambda: "late")
    free = core.allreduce_async_(array(), name="free")
    answers.append(engine.wait_any([held, free], 60.0) == 1)
    try:
        engine.wait_any([held], 0.0)
    except core.TimedOut:
        answers.append(not held.done())
    more = core.allreduce_async_(array(), name="more")
    answers.append(completion_of(engine).future([more], lambda: "early").wait() == "early")
    answers.append(not late.done())
    core.barrier(name="go")
    answers.append(late.wait() == "late" and held.done())
else:
    core.allreduce_(array(), name="free")
    core.allreduce_(array(), name="more")
    core.barrier(name="go")
    core.allreduce_(array(), name="held")
report(answers)
""",
    )

    assert results == [[True] * 5, []]


@needs_async_op
def test_blocking_collectives_of_torch_run_in_the_thread_that_calls(on_ranks):
    results = on_ranks(
        2,
        COUNTED
        + """
import torch.distributed as dist
import rabit_torch.distributed

dist.init_process_group("rabit", rank=rabit.rank(), world_size=2)
tensor, parts = torch.ones(8), [torch.ones(8), torch.ones(8)]
calls = {
    "all_reduce": lambda: dist.all_reduce(tensor),
    "reduce": lambda: dist.reduce(tensor, 1),
    "broadcast": lambda: dist.broadcast(tensor, 1),
    "all_gather": lambda: dist.all_gather(parts, tensor),
    "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(torch.empty(16), tensor),
    "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(torch.empty(4), tensor),
    "all_to_all_single": lambda: dist.all_to_all_single(torch.empty(8), tensor),
    "gather": lambda: dist.gather(tensor, parts if rabit.rank() == 0 else None, 0),
    "scatter": lambda: dist.scatter(tensor, parts if rabit.rank() == 0 else None, 0),
    "barrier": lambda: dist.barrier(),
}
answers = {}
for name, call in calls.items():
    for _ in range(10):
        names, _ = taken(call)
        answers[name] = names[0] == "run"
tensor.fill_(rabit.rank() + 1.0)
names, work = taken(lambda: dist.all_reduce(tensor, async_op=True))
answers["async"] = "run" not in names and work.wait() and tensor.tolist() == [3.0] * 8
names, _ = taken(lambda: dist.all_reduce(tensor))
answers["sum"] = tensor.tolist() == [6.0] * 8
dist.destroy_process_group()
report(answers)
""",
    )

    assert all(all(answers.values()) for answers in results), results


def test_the_handle_of_a_call_that_comes_again_behaves_as_the_first_one(on_ranks):
    results = on_ranks(
        2,
        """
rank = rabit.rank()
handles = []
for again in range(2):
    tensor = torch.full((4,), rank + 1.0)
    handle = rabit.allreduce_async_(tensor, name="kept", op=rabit.Sum)
    given = handle.wait()
    handles.append([given is tensor, handle() is tensor, rabit.synchronize(handle) is tensor,
                    rabit.poll(handle), given.tolist()])
errors = []
for again in range(2):
    shape = (2 + rank,) if again else (2,)
    for repeat in range(2):  # the second is found again; its twin on the other rank has other extents
        handle = rabit.allreduce_async_(torch.ones(shape), name=f"differs.{again}")
        for _ in range(2):
            try:
                handle.wait()
                errors.append("")
            except rabit.Mismatch as error:
                errors.append(str(error)[:9])
report([handles, errors])
""",
    )

    again = [True, True, True, True, [3.0] * 4]
    assert results == [[[again] * 2, [""] * 4 + ["allreduce"] * 4]] * 2


@needs_exchange
def test_a_tensor_lives_until_its_operation_has_finished_though_its_handle_is_dropped(on_ranks):
    results = on_ranks(
        2,
        PROLOGUE
        + """
import gc, weakref

gone, were_alive = [], []
for again in range(3):
    tensor = torch.ones(1 << 16)
    weakref.finalize(tensor, gone.append, again)
    if rabit.rank() == 1:
        rabit.allreduce_(torch.ones(1), name="dropped there")
    handle = rabit.allreduce_async_(tensor, name="x")
    del handle, tensor
    gc.collect()
    if rabit.rank() == 0:
        if again:  # the first call has another object for the same memory
            were_alive.append(again not in gone)
        rabit.allreduce_(torch.ones(1), name="dropped there")
    core.barrier(name="submitted")
    while native.orphans:
        native.sweep()
report([were_alive, gone])
""",
    )

    assert results == [[[True] * 2, [0, 1, 2]], [[], [0, 1, 2]]]


def test_only_what_needs_a_gradient_takes_the_way_of_autograd(on_ranks):
    results = on_ranks(
        2,
        """
recorded = []
apply = torch.autograd.Function.apply.__func__
torch.autograd.Function.apply = classmethod(
    lambda function, *given: recorded.append(function.__name__) or apply(function, *given)
)
forms = [
    lambda x: rabit.allreduce(x, name="a"),
    lambda x: rabit.allgather(x, name="b"),
    lambda x: rabit.broadcast(x, 1, name="c"),
    lambda x: rabit.alltoall(x, name="d"),
    lambda x: rabit.alltoall(x, [1, 1], name="e")[0],
    lambda x: rabit.reducescatter(x, name="f"),
]
new = lambda: torch.full((2, 3), rabit.rank() + 1.0)
plain = [form(new()) for form in forms]
without = len(recorded)
with torch.no_grad():
    quiet = [form(new().requires_grad_()) for form in forms]
without_grad = len(recorded)
graph = [form(new().requires_grad_()) for form in forms]
same = all(torch.equal(p, q) and torch.equal(p, g) for p, q, g in zip(plain, quiet, graph))
report([same, without, without_grad, len(recorded), [g.requires_grad for g in graph]])
""",
    )

    assert results == [[True, 0, 0, 6, [True] * 6]] * 2
