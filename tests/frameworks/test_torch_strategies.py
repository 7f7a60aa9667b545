"""Gradient methods behind DistributedOptimizer, over processes."""

from __future__ import annotations

import pytest

TRAIN = """
from torch import nn
from rabit_torch import strategies as methods


def every(exchange):
    return methods.Synchronous(exchange)


def topk(ratio):
    return methods.Gathered(methods.LargestEntries(ratio))


def power(rank):
    return methods.ErrorFeedback(methods.PowerSGD(rank, min_rate=0))


def sgd(parameters, momentum=0.0, nesterov=False):
    return torch.optim.SGD(parameters, lr=0.1, momentum=momentum, nesterov=nesterov)


def make(strategy=None, optimizer=sgd, dtype=torch.float64, **arguments):
    torch.manual_seed(7)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 16), nn.Tanh(), nn.Linear(16, 4)
    ).to(dtype)
    wrapped = rabit.DistributedOptimizer(
        optimizer(model.parameters()), model.named_parameters(), strategy=strategy, **arguments
    )
    return model, wrapped


def backward(model, step):
    generator = torch.Generator().manual_seed(100 * step + rabit.rank())
    dtype = next(model.parameters()).dtype
    images = torch.randn(4, 1, 8, 8, generator=generator, dtype=dtype)
    labels = torch.randint(0, 4, (4,), generator=generator)
    nn.functional.cross_entropy(model(images), labels).backward()


def train(*arguments, steps=6, around=None, **named):
    model, optimizer = make(*arguments, **named)
    for step in range(steps):
        if around is not None:
            optimizer = around(model, optimizer, step) or optimizer
        backward(model, step)
        optimizer.step()
        optimizer.zero_grad()
    optimizer.flush()
    return torch.cat([p.detach().double().reshape(-1) for p in model.parameters()])


def distance(a, b):
    return float((a - b).abs().max())


def spread(flat):
    return max(distance(each, flat) for each in rabit.allgather_object(flat))


def raised(strategy, **arguments):
    try:
        make(strategy, **arguments)
    except rabit.InvalidArgument as error:
        return str(error)
    return ""
"""


def test_methods_equal_what_they_must(on_ranks):
    found = on_ranks(
        2,
        TRAIN
        + """
mean = train()
momentum = train(optimizer=lambda p: sgd(p, 0.9))
nesterov = train(optimizer=lambda p: sgd(p, 0.9, True))
adam = train(optimizer=lambda p: torch.optim.Adam(p, lr=0.1))
results = {
    "mean": distance(train(every(methods.Mean())), mean),
    "text": distance(train("mean"), mean),
    "small": distance(train(methods.PowerSGD(1)), mean),
    "power": distance(train(every(power(99))), mean),
    "no overlap": distance(train(every(power(99)), overlap="none"), mean),
    "next forward": distance(train(every(power(99)), overlap="next-forward"), mean),
    "halves": distance(train(every(topk(1.0)), overlap="reduce-scatter"), mean),
    "two passes": distance(train(every(power(99)), backward_passes_per_step=1, num_groups=2), mean),
    "rows": distance(train(every(methods.RowSparse())), mean),
    "dgc": distance(train(every(methods.MomentumCorrection(topk(1.0), masks=False))), momentum),
    "local": distance(train(methods.LocalSGD(1)), mean),
    "slowmo": distance(train(methods.LocalSGD(1, methods.SlowMomentum(1, 0.9))), momentum),
    "diloco": distance(train(methods.LocalSGD(1, methods.Nesterov(1.0, 0.9))), nesterov),
    "adam": distance(train(methods.OneBitAdam(methods.Mean(), 99)), adam),
}
single = {"dtype": torch.float32}
results["in float32"] = 1e-7 * distance(train(every(power(99)), **single), train(**single))
report(results)
""",
    )

    for rank in found:
        assert {name: value for name, value in rank.items() if value > 1e-12} == {}


def test_ranks_stay_together_and_learn_in_bfloat16(on_ranks):
    found = on_ranks(
        2,
        TRAIN
        + """
mean = train(dtype=torch.float32)
specs = [
    "powersgd:rank=2,small=0", "topk:ratio=0.1,small=0", "sign:small=0", "qsgd:small=0",
    "nuqsgd:small=0", "natural:small=0", "bytegrad:small=0", "ef21:ratio=0.2,small=0",
    "dgc:ratio=0.1,small=0", "accordion:interval=2,small=0", "onebit-adam:warmup=2,small=0",
    "qadam:warmup=2,small=0", "slowmo:every=3", "diloco:every=3",
]
results = {}
for spec in specs:
    lr = 1e-3 if "adam" in spec else 0.1
    flat = train(spec, lambda p: torch.optim.SGD(p, lr=lr), dtype=torch.bfloat16)
    results[spec] = (spread(flat), distance(flat, mean))
report(results)
""",
    )

    for name, (spread, distance) in found[0].items():
        assert spread == 0, name
        assert 0 < distance < 1, name


def test_a_skipped_step_leaves_no_trace_and_a_saved_state_goes_on(on_ranks):
    found = on_ranks(
        2,
        TRAIN
        + """
def skip(model, optimizer, step):
    if step == 3:
        backward(model, 999)
        optimizer.zero_grad()


def reload(model, optimizer, step):
    if step == 3:
        import io
        file = io.BytesIO()
        torch.save(optimizer.strategy_state_dict(), file)
        file.seek(0)
        inner = optimizer._rabit_inner
        optimizer._rabit_reducer.arrivals.stop_listening()
        again = rabit.DistributedOptimizer(inner, model.named_parameters(), strategy=remake())
        again.load_strategy_state_dict(torch.load(file, weights_only=True))
        return again


results = {}
for name, remake in {
    "power": lambda: every(power(2)),
    "top-k": lambda: every(methods.ErrorFeedback(topk(0.1))),
    "levels": lambda: every(methods.Gathered(methods.Levels((0.0, 0.25, 0.5, 1.0)))),
    "slowmo": lambda: methods.LocalSGD(4, methods.SlowMomentum()),
    "engine": lambda: methods.make("sign:block=64,small=0"),
}.items():
    dtype = torch.float32 if name == "engine" else torch.float64
    plain = train(remake(), dtype=dtype)
    results[name] = [
        distance(train(remake(), around=each, dtype=dtype), plain) for each in (skip, reload)
    ]
report(results)
""",
    )

    names = ["power", "top-k", "levels", "slowmo", "engine"]
    assert found == [{name: [0, 0] for name in names}] * 2


def test_codecs_of_the_engine_go_without_a_coroutine_in_every_overlap(on_ranks):
    found = on_ranks(
        2,
        TRAIN
        + """
results = {}
for spec in ("sign:block=64,small=0", "bytegrad:small=0"):
    plain = train(spec, dtype=torch.float32)
    results[spec] = [spread(plain)] + [
        distance(train(spec, dtype=torch.float32, overlap=overlap), plain)
        for overlap in ("none", "next-forward", "reduce-scatter")
    ]


from rabit_torch.optimizer.method import ByMethod


def coroutines(dtype):
    _, optimizer = make("topk:ratio=0.1,small=512", dtype=dtype)
    return sum(isinstance(state.route, ByMethod) for state in optimizer._rabit_reducer.states)


report([results, coroutines(torch.float32), coroutines(torch.float64)])
""",
    )

    for results, native, numpy in found:
        assert results == {name: [0, 0, 0, 0] for name in results}
        assert native == 0 and numpy > 0


def test_arguments_that_cannot_work_are_refused(on_ranks):
    (found,) = on_ranks(
        1,
        TRAIN
        + """
used = methods.LocalSGD(2)
make(used)
adam = lambda p: torch.optim.Adam(p)
_, plain = make()
_, local = make(methods.LocalSGD(2))
report({
    "momentum": raised(methods.make("dgc"), optimizer=lambda p: sgd(p, 0.9)),
    "adam": raised(methods.make("qadam"), optimizer=adam),
    "late": raised(methods.LocalSGD(2), overlap="next-forward"),
    "twice": raised(used),
    "both": raised("topk", compression=rabit.Compression.bf16),
    "sum": raised("topk", op=rabit.Sum),
    "text": raised("dgc", optimizer=lambda p: sgd(p, 0.9)),
    "unknown": raised("topkk"),
})
for call in (lambda: plain.strategy, lambda: local.set_overlap("next-forward"), lambda: local.step(lambda: 0)):
    try:
        call()
        raise SystemExit("not refused")
    except rabit.InvalidArgument:
        pass
""",
    )

    assert "keeps momentum by itself, and SGD would add its own" in found["momentum"]
    assert "strategy 'dgc' keeps momentum by itself" in found["text"]
    assert "and Adam would add its own" in found["adam"]
    assert "overlap='next-forward' puts updates off, and LocalSGD works on updated" in found["late"]
    assert "already, whose state it holds" in found["twice"]
    assert "so does compression" in found["both"] and "so does op=sum" in found["sum"]
    assert "did you mean 'topk'" in found["unknown"]


def test_what_is_under_way_is_brought_in_when_training_ends(on_ranks):
    """An average is always under way after a step; that it ends moves every rank, and not their sum."""
    found = on_ranks(
        3,
        TRAIN
        + """
method = methods.AsyncAverage()
model, optimizer = make(method)
def flat():
    return torch.cat([each.detach().reshape(-1) for each in model.parameters()]).tolist()
for step in range(5):
    if step > 0:  # then all ranks have brought in as many before the last one
        method._move.wait()
    backward(model, step)
    optimizer.step()
    optimizer.zero_grad()
before = flat()
rabit.shutdown()
after = flat()
rabit.init()
report([before, after])
""",
    )

    assert all(before != after for before, after in found)
    sums = [[sum(each) for each in zip(*flats, strict=True)] for flats in zip(*found, strict=True)]
    assert sums[1] == pytest.approx(sums[0], rel=1e-9, abs=1e-12)


def test_a_script_that_names_no_method_takes_the_configured_one(on_ranks):
    found = on_ranks(
        2,
        TRAIN
        + """
model, optimizer = make()
report([
    repr(optimizer.strategy), repr(make("mean")[1].strategy),
    distance(train(), train("powersgd:rank=1,small=0")), raised(None, op=rabit.Sum),
])
""",
        RABIT_STRATEGY="powersgd:rank=1,small=0",
    )

    for configured, given, difference, refusal in found:
        assert "PowerSGD(rank=1" in configured and "Mean(" in given
        assert difference == 0
        assert refusal.startswith(
            "RABIT_STRATEGY or --strategy is 'powersgd:rank=1,small=0', and this"
        )
        assert "so does op=sum" in refusal


DDP = (
    TRAIN
    + """
import torch.distributed as dist

dist.init_process_group(
    "rabit", rank=rabit.rank(), world_size=rabit.size(), init_method=f"file://{sys.argv[0]}.meet"
)


def ddp(method, steps=6, reload=None, dtype=torch.float64, **arguments):
    torch.manual_seed(7)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 4)).to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    wrapped = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.01, **arguments)
    hook = None
    if method is not None:
        hook = rabit.DdpMethod(method, model.named_parameters(), optimizer)
        wrapped.register_comm_hook(hook, rabit.ddp_hook)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = 0.1 if step < 3 else 0.05
        if step == reload:
            hook.load_state_dict(hook.state_dict())
        optimizer.zero_grad()
        backward(wrapped, step)
        optimizer.step()
    return torch.cat([p.detach().double().reshape(-1) for p in model.parameters()])
"""
)


def test_methods_are_communication_hooks_of_ddp(on_ranks):
    found = on_ranks(
        2,
        DDP
        + """
mean = ddp(None)
sent = ddp(every(methods.ErrorFeedback(topk(0.1))))
report([
    distance(ddp(every(power(99))), mean),
    distance(ddp(every(power(99)), static_graph=True), mean),
    distance(ddp("mean"), mean),
    spread(sent),
    spread(ddp("topk:ratio=0.1,small=0", dtype=torch.float32)),
    distance(ddp(every(methods.ErrorFeedback(topk(0.1))), reload=4), sent),
    distance(sent, mean),
])
dist.destroy_process_group()
""",
    )

    for *equal, apart in found:
        assert max(equal) <= 1e-12
        assert 0 < apart < 1


def test_what_cannot_be_a_hook_of_ddp_is_refused(on_ranks):
    (found,) = on_ranks(
        1,
        DDP
        + """
def refused(call):
    try:
        call()
    except rabit.InvalidArgument as error:
        return str(error)


model = nn.Linear(4, 4)
wrapped = nn.parallel.DistributedDataParallel(model)
wrapped.register_comm_hook(rabit.DdpMethod("topk", [("other", nn.Linear(2, 2).weight)]), rabit.ddp_hook)
report([
    refused(lambda: rabit.DdpMethod(methods.LocalSGD(2), model.named_parameters())),
    refused(lambda: wrapped(torch.ones(1, 4)).sum().backward()),
])
dist.destroy_process_group()
""",
    )

    assert "LocalSGD works on parameters in step(), and a communication hook" in found[0]
    assert "parameters of shapes [(4, 4), (4,)] that this DdpMethod was not given" in found[1] or (
        "parameters of shapes [(4,), (4, 4)]" in found[1]
    )
