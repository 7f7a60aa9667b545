"""Collectives on torch tensors."""

from __future__ import annotations

import warnings

import pytest


@pytest.mark.parametrize("ranks", [2, 3])
def test_allreduce_of_every_dtype_and_op(on_ranks, ranks):
    results = on_ranks(
        ranks,
        """
wrong = []
types = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
         torch.float32, torch.float64]
size, rank = rabit.size(), rabit.rank()
for dtype in types:
    every = [torch.tensor([1, 2, 3, 4, r + 1]).to(dtype) for r in range(size)]
    stack = torch.stack(every).double()
    for op, expected in (
        (rabit.Sum, stack.sum(0)), (rabit.Average, stack.mean(0)), (rabit.Min, stack.amin(0)),
        (rabit.Max, stack.amax(0)), (rabit.Product, stack.prod(0)),
    ):
        have = rabit.allreduce(every[rank], op=op).double()
        want = expected if dtype.is_floating_point else expected.trunc()
        if not torch.allclose(have, want, rtol=1e-2 if dtype.itemsize == 2 and dtype.is_floating_point else 1e-9):
            wrong.append([str(dtype), str(op), have.tolist(), want.tolist()])
flags = torch.tensor([True, False, rank == 0])
if rabit.allreduce(flags, op=rabit.BitwiseOr).tolist() != [True, False, True]:
    wrong.append("bool or")
if rabit.allreduce(flags, op=rabit.BitwiseAnd).tolist() != [True, False, False]:
    wrong.append("bool and")
report(wrong)
""",
    )

    assert results == [[]] * ranks


def test_layouts_that_need_care(on_ranks):
    results = on_ranks(
        2,
        """
size, rank = rabit.size(), rabit.rank()
base = torch.arange(24, dtype=torch.float32).reshape(2, 3, 4)
answers = {}
answers["transposed"] = torch.equal(rabit.allreduce(base.transpose(0, 2), op=rabit.Sum), 2 * base.transpose(0, 2))
strided = base.clone()[:, ::2]
rabit.allreduce_(strided, op=rabit.Sum)
answers["strided in place"] = torch.equal(strided, 2 * base[:, ::2])
last = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0)).contiguous(memory_format=torch.channels_last)
answers["channels_last"] = torch.equal(rabit.allreduce_(last.clone(), op=rabit.Sum), 2 * last)
answers["scalar"] = rabit.allreduce(torch.tensor(rank + 1.0), op=rabit.Sum).item() == 3
answers["empty"] = list(rabit.allreduce(torch.zeros(0, 3)).shape) == [0, 3]
report(answers)
""",
    )

    assert all(all(answers.values()) for answers in results), results


def test_gathers_scatters_and_alltoall(on_ranks):
    results = on_ranks(
        3,
        """
size, rank = rabit.size(), rabit.rank()
gathered = rabit.allgather(torch.full((rank + 1, 2), float(rank)))
rows, received = rabit.alltoall(torch.arange(6.0) + 10 * rank, splits=torch.tensor([1, 2, 3]))
part = rabit.reducescatter(torch.arange(7.0) * (rank + 1), op=rabit.Sum)
sent = rabit.broadcast(torch.tensor([rank, 7]), root_rank=2)
halves = rabit.allgather(torch.tensor([1.5], dtype=torch.bfloat16))
report([gathered[:, 0].tolist(), rows.tolist(), received.tolist(), part.tolist(), sent.tolist(), str(halves.dtype)])
""",
    )

    for rank, (gathered, rows, received, part, sent, half) in enumerate(results):
        assert gathered == [0, 1, 1, 2, 2, 2]
        starts = [0, 1, 3]
        assert rows == [10 * r + starts[rank] + i for r in range(3) for i in range(rank + 1)]
        assert received == [rank + 1] * 3
        assert part == [[0, 6, 12], [18, 24], [30, 36]][rank]
        assert sent == [2, 7]
        assert half == "torch.bfloat16"


GRADIENTS = """
size, rank = rabit.size(), rabit.rank()
answers = []
x = torch.full((3,), 2.0, requires_grad=True)
(rabit.allreduce(x * (rank + 1), op=rabit.Average) * torch.arange(3.0)).sum().backward()
answers.append(x.grad.tolist())
x = torch.ones(rank + 1, 2, requires_grad=True)
(rabit.allgather(x) * torch.arange(6.0).reshape(3, 2)).sum().backward()
answers.append(x.grad.reshape(-1).tolist())
x = torch.ones(2, requires_grad=True)
(rabit.broadcast(x, root_rank=1) * (rank + 1)).sum().backward()
answers.append(x.grad.tolist())
x = torch.ones(4, requires_grad=True)
(rabit.alltoall(x) * torch.tensor([1.0, 2, 3, 4]) * (rank + 1)).sum().backward()
answers.append(x.grad.tolist())
x = torch.ones(4, requires_grad=True)
(rabit.reducescatter(x, op=rabit.Sum) * (rank + 1)).sum().backward()
answers.append(x.grad.tolist())
x, y = (torch.ones(n, requires_grad=True) for n in (2, 4))
sum(each.sum() for each in rabit.grouped_allgather([x, y])).backward()
answers.append([x.grad.tolist(), y.grad.tolist()])
x, y = (torch.ones(n, requires_grad=True) for n in (2, 4))
sum(each.sum() for each in rabit.grouped_reducescatter([x, y], op=rabit.Average)).backward()
answers.append([x.grad.tolist(), y.grad.tolist()])
x = torch.ones(2, requires_grad=True)
rabit.reducescatter(x, op=rabit.Average, prescale_factor=3.0, postscale_factor=0.5).sum().backward()
answers.append(x.grad.tolist())
report(answers)
"""


def test_gradients_of_collectives_are_those_of_horovod(on_ranks):
    results = on_ranks(2, GRADIENTS)

    assert results[0][0] == [0.0, 1.0, 2.0] and results[1][0] == [0.0, 2.0, 4.0]
    assert results[0][1] == [0.0, 1.0] and results[1][1] == [2.0, 3.0, 4.0, 5.0]
    assert results[0][2] == [0.0, 0.0] and results[1][2] == [1.5, 1.5]
    assert results[0][3] == [1.0, 2.0, 2.0, 4.0] and results[1][3] == [3.0, 4.0, 6.0, 8.0]
    assert results[0][4] == results[1][4] == [2.0, 2.0, 4.0, 4.0]
    assert results[0][5] == results[1][5] == [[1.0] * 2, [1.0] * 4]
    assert results[0][6] == results[1][6] == [[1.0] * 2, [1.0] * 4]
    assert results[0][7] == results[1][7] == [1.5, 1.5]


def test_gradients_of_collectives_are_the_transpose_where_that_is_set(on_ranks):
    results = on_ranks(2, GRADIENTS, RABIT_GRADIENTS="transpose")

    assert results[0][0] == [0.0, 1.0, 2.0] and results[1][0] == [0.0, 2.0, 4.0]
    assert results[0][1] == [0.0, 2.0] and results[1][1] == [4.0, 6.0, 8.0, 10.0]
    assert results[0][2] == [0.0, 0.0] and results[1][2] == [3.0, 3.0]
    assert results[0][3] == [1.0, 2.0, 2.0, 4.0] and results[1][3] == [3.0, 4.0, 6.0, 8.0]
    assert results[0][4] == results[1][4] == [1.0, 1.0, 2.0, 2.0]
    assert results[0][5] == results[1][5] == [[2.0] * 2, [2.0] * 4]
    assert results[0][6] == results[1][6] == [[0.5] * 2, [0.5] * 4]
    assert results[0][7] == results[1][7] == [0.75, 0.75]


def test_alltoall_of_different_extents_without_splits_has_its_gradient(on_ranks):
    results = on_ranks(
        2,
        """
rank = rabit.rank()
x = torch.ones(2 + 2 * rank, requires_grad=True)
rows = rabit.alltoall(x)
(rows * torch.arange(1.0, 4.0) * (rank + 1)).sum().backward()
report([rows.shape[0], x.grad.tolist()])
""",
    )

    assert results == [[3, [1.0, 2.0]], [3, [2.0, 3.0, 4.0, 6.0]]]


def test_reducescatter_of_min_has_no_gradient(on_ranks):
    results = on_ranks(
        2,
        """
x = torch.ones(2, requires_grad=True)
try:
    rabit.reducescatter(x, op=rabit.Min).sum().backward()
    report("no error")
except RuntimeError as error:
    report(str(error))
""",
    )

    assert results == ["reducescatter with op min has no gradient; use Sum or Average, or detach() the input"] * 2


def test_a_reducescatter_travels_in_the_type_of_its_compression(on_ranks):
    # 2049 is no float16: what travels is 2048.
    results = on_ranks(
        2,
        """
x = torch.tensor([2049.0, 1.0]) if rabit.rank() == 0 else torch.zeros(2)
one = rabit.reducescatter(x, op=rabit.Sum, compression=rabit.Compression.fp16)
(two,) = rabit.grouped_reducescatter([x], op=rabit.Sum, compression=rabit.Compression.fp16)
report([one.tolist(), two.tolist(), str(one.dtype)])
""",
    )

    assert results[0] == [[2048.0], [2048.0], "torch.float32"]


def test_an_optimizer_takes_a_codec_of_the_engine(on_ranks):
    # Both elements of each block are its smallest and its largest, which 8 bits represent.
    results = on_ranks(
        2,
        """
model = torch.nn.Linear(4096, 1, bias=False)
optimizer = rabit.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters(), compression=rabit.Compression.minmax8()
)
row = torch.tensor([1.0, -3.0]).repeat(2048)
(model(row * (rabit.rank() + 1))).sum().backward()
report(float((model.weight.grad[0] - 1.5 * row).abs().max()))
""",
    )

    assert all(difference < 1e-5 for difference in results)


def test_sync_and_async_calls_of_one_name_meet(on_ranks):
    results = on_ranks(
        2,
        """
x = torch.full((2,), float(rabit.rank() + 1))
if rabit.rank() == 0:
    rows, part = rabit.allgather(x, name="a"), rabit.reducescatter(x, name="b", op=rabit.Sum)
else:
    rows = rabit.allgather_async(x, name="a").wait()
    part = rabit.reducescatter_async(x, name="b", op=rabit.Sum).wait()
report([rows.tolist(), part.tolist()])
""",
        timeout=40,
    )

    assert results == [[[1.0, 1.0, 2.0, 2.0], [3.0]]] * 2


def test_handles_poll_and_may_be_waited_for_twice(on_ranks):
    results = on_ranks(
        2,
        """
handle = rabit.allreduce_async(torch.ones(1000), op=rabit.Sum, name="a")
first = rabit.synchronize(handle)
again = rabit.synchronize(handle)
report([first is again, rabit.poll(handle), first[0].item()])
""",
    )

    assert results == [[True, True, 2.0]] * 2


def test_what_no_collective_can_carry_is_refused_with_the_reason(on_ranks):
    results = on_ranks(
        1,
        """
texts = []
for bad in (torch.zeros(2, dtype=torch.complex32), torch.eye(3).to_sparse(), "text", torch.zeros(2, device="meta")):
    try:
        rabit.allreduce_async(bad, name="odd")
        texts.append("no error")
    except RuntimeError as error:
        texts.append(str(error))
report(texts)
""",
    )

    for text, word in zip(
        results[0], ["complex32", "to_dense()", "torch.Tensor", "'meta'"], strict=True
    ):
        assert "odd" in text and word in text


def test_a_sparse_handle_is_done_when_waiting_does_not_block(on_ranks):
    results = on_ranks(
        2,
        """
rows = torch.sparse_coo_tensor([[rabit.rank(), 2]], torch.tensor([3, -5]), (4,))
handle = None
if rabit.rank() == 0:
    handle = rabit.sparse_allreduce_async(rows, "a", rabit.Average)
    before = rabit.poll(handle)
    try:
        handle.wait(0.05)
        before = "the other rank has not called, and wait(0.05) returned"
    except rabit.TimedOut:
        pass
rabit.barrier()
handle = handle or rabit.sparse_allreduce_async(rows, "a", rabit.Average)
result = handle.wait()
report([before if rabit.rank() == 0 else False, result.to_dense().tolist(), str(result.dtype)])
""",
    )

    # Integers truncate toward zero after the sum, as dense ones do: -10 / 2 and 3 / 2.
    assert results == [[False, [1, 1, -5, 0], "torch.int64"]] * 2


def test_a_mean_is_right_where_the_sum_leaves_the_type(on_ranks):
    results = on_ranks(
        3,
        """
found = {}
for dtype, value in ((torch.float16, 40000), (torch.bfloat16, 3.3e38), (torch.int8, 100), (torch.uint8, 200)):
    same = torch.full((6,), value, dtype=dtype)
    sparse = torch.sparse_coo_tensor([[0, 2]], same[:2], (4,))
    part = torch.empty(2, dtype=dtype)
    rabit.ordered_reducescatter_into(part, same)
    found[str(dtype)] = [
        torch.equal(rabit.allreduce(same), same),
        torch.equal(rabit.allreduce(same.repeat(5000)), same.repeat(5000)),
        torch.equal(rabit.grouped_allreduce([same, same])[1], same),
        torch.equal(rabit.reducescatter(same), same[:2]),
        torch.equal(rabit.ordered_allreduce_(same.clone()), same),
        torch.equal(part, same[:2]),
        torch.equal(rabit.sparse_allreduce_async(sparse, f"s{dtype}").wait().to_dense(), sparse.to_dense()),
    ]
large = torch.full((5000,), 40000.0)
found["fp16"] = [torch.equal(rabit.allreduce(large, compression=rabit.Compression.fp16), large)]
small = torch.full((5000,), 2.0**-24, dtype=torch.float16)
found["smallest"] = [torch.equal(rabit.allreduce(small), small)]

model = torch.nn.Linear(4, 1, bias=False)
optimizer = rabit.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters(), compression=rabit.Compression.fp16
)
(model(torch.full((1, 4), 40000.0))).sum().backward()
optimizer.synchronize()
found["gradient"] = [model.weight.grad.tolist() == [[40000.0] * 4]]
report(found)
""",
    )

    for found in results:
        assert all(map(all, found.values())), found


def test_a_job_that_is_not_elastic_runs_an_elastic_function_and_raises_its_errors(on_ranks):
    results = on_ranks(
        2,
        """
state = rabit.elastic.ObjectState(step=0)

@rabit.elastic.run
def train(state):
    while state.step < 3:
        state.step += 1
        state.commit()
    return state.step

@rabit.elastic.run
def fail(state):
    raise ValueError("mine")

steps = train(state)
try:
    fail(state)
except ValueError as error:
    report([steps, str(error)])
""",
    )

    assert results == [[3, "mine"]] * 2


def test_a_process_set_is_refused_twice(on_ranks):
    results = on_ranks(
        1,
        """
rabit.shutdown()
try:
    rabit.init(process_sets=[rabit.ProcessSet([0]), rabit.ProcessSet([0])])
    text = "accepted"
except rabit.InvalidArgument as error:
    text = str(error)
report(text)
""",
    )

    assert results == ["init: process_sets has the set of ranks [0] twice. Pass each set once."]


def test_buckets_of_a_model_that_is_gone_give_their_numbers_to_nobody():
    import numpy
    import torch

    from rabit_torch.distributed.hook import _number_of

    class Bucket:
        def __init__(self, parameter):
            self.parameter = parameter

        def parameters(self):
            return [self.parameter]

        def buffer(self):
            return self.parameter.detach()

    memory = numpy.zeros(4, numpy.float32)
    first = Bucket(torch.nn.Parameter(torch.from_numpy(memory)))
    number = _number_of(first)
    assert _number_of(first) == number
    del first
    second = Bucket(torch.nn.Parameter(torch.from_numpy(memory)))

    assert _number_of(second) == number + 1


def test_shutdown_while_an_error_is_handled_leaves_it_the_first(tmp_path, rank_server):
    from support.processes import run_processes

    script = """
import os, signal, sys
import torch
import rabit_torch as rabit
rabit.init()
if rabit.rank() == 1:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    try:
        rabit.allreduce(torch.ones(2), name="a")
    finally:
        rabit.shutdown()
except rabit.RabitError as error:
    print("first:", error, "after:", error.__context__)
"""
    ended = run_processes(2, script, tmp_path, command=rank_server.command)

    assert ended[0].status == 0, ended[0].errors
    assert "first: " in ended[0].output and "after: None" in ended[0].output, ended[0].output


def test_negated_views_travel_with_their_sign(on_ranks):
    """torch marks them, and leaves the memory as it is.  A call that comes again too."""
    results = on_ranks(
        2,
        """
import rabit as core

plain = torch.arange(1.0, 5)
answers = {}
for name, give in {
    "allreduce": lambda x: rabit.allreduce(x, name="a"),
    "of arrays": lambda x: torch.as_tensor(core.allreduce(x, name="b")),
    "group": lambda x: rabit.grouped_allreduce([x, x], name="c")[1],
    "group of arrays": lambda x: torch.as_tensor(core.grouped_allreduce([x, x], name="d")[1]),
    "gather": lambda x: rabit.allgather(x, name="e")[4:],
    "alltoall": lambda x: torch.cat([rabit.alltoall(x[i : i + 1].expand(2), name="f")[:1] for i in range(4)]),
    "broadcast": lambda x: rabit.broadcast(x, 1, name="g"),
    "broadcast of arrays": lambda x: torch.as_tensor(core.broadcast(x, 1, name="h")),
    "in place": lambda x: rabit.allreduce_(torch._neg_view(-x), name="i"),
    "broadcast in place": lambda x: rabit.broadcast_(torch._neg_view(-x), 1, name="j"),
    "reduce": lambda x: [rabit.reduce(x, root, name=f"k{root}") for root in range(2)][rabit.rank()],
}.items():
    every = [give(x) for x in (torch._neg_view(plain), plain, torch._neg_view(plain))]
    answers[name] = [torch.equal(each, want) for each, want in zip(every, (-plain, plain, -plain))]
x = torch._neg_view(plain)
rabit.allreduce_(x, name="l", op=rabit.Sum)
answers["written in place"] = x.is_neg() and plain.tolist() == [2, 4, 6, 8]
report([name for name, each in answers.items() if each is not True and not all(each)])
""",
    )

    assert results == [[], []]


def test_a_tensor_of_parts_is_refused_with_what_to_pass():
    import torch

    import rabit
    from rabit_torch.tensors import check

    class Distributed(torch.Tensor):
        def to_local(self):
            return self

    with pytest.raises(rabit.Unsupported, match=r"'a' is a Distributed, which has no memory .*to_local\(\)"):
        check(torch.ones(2).as_subclass(Distributed), "a")


def odd_tensors():
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fake = torch.ones(3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of prototypes
        yield "FakeTensor, which has no memory", fake
        masked = torch.masked.masked_tensor(torch.ones(2), torch.tensor([True, False]))
        yield "MaskedTensor, which has no memory", masked
        yield "nested tensor, which has no memory", torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
        yield "layout torch.sparse_csr", torch.eye(3).to_sparse_csr()
    yield "has no shape yet; run the model once", torch.nn.parameter.UninitializedParameter()
    yield "device 'meta', so it has a shape and no values", torch.ones(3, device="meta")
    yield r"strides \(0,\), so that several elements", torch.ones(1).expand(3)


def test_a_tensor_whose_memory_is_not_its_value_is_refused_in_words():
    import torch

    import rabit
    from rabit_torch.tensors import check

    for message, tensor in odd_tensors():
        with pytest.raises((rabit.Unsupported, rabit.InvalidArgument), match=f"'a' .*{message}"):
            check(tensor, "a", is_written=True)
    assert check(torch.ones(1).expand(3), "a").shape == (3,)
