"""Small measurements of what single papers claim: uneven networks, hinge losses, sharded state, deadlines."""

from __future__ import annotations

import time
from fractions import Fraction
from typing import Any

import numpy as np
from harness import case, median, on_ranks, table, words

RANKS = 4

# --- uneven ---------------------------------------------------------------------------------------------------------

Links = list[tuple[str, str, float]]


@case()
def uneven(o: Any) -> None:
    """Rates of an allreduce on uneven networks by the planner: rings, the binary tree, and the proven optimum.

    Rates are bytes of the tensor per unit of time, links have 10 in each direction where nothing else is said. It
    computes and sends nothing. "in rank order": ranks alternate between racks, as a scheduler may place them.
    """
    from rabit.planner import Plan, Topology

    rows = []
    for name, (hosts, links, switches) in networks().items():
        both = [*links, *((end, start, capacity) for start, end, capacity in links)]
        plan = Plan(Topology.of(hosts, both, switches))
        best = plan.allreduce
        rates = [plan.ring(), plan.ring(plan.order), plan.tree]
        rows.append([name, *map(shown, [*rates, best]), shown(best / rates[0]), shown(best / rates[1])])
    ways = ["ring in rank order", "ring in the best order", "binary tree", "plan of trees"]
    table(["network", *ways, "plan / rank order", "plan / best order"], rows)


def networks() -> dict[str, tuple[list[str], Links, list[str]]]:
    found: dict[str, tuple[list[str], Links, list[str]]] = {}
    for count, between in ((4, 5.0), (8, 5.0), (8, 20.0)):
        hosts = [f"h{rank}" for rank in range(count)]
        links: Links = [(host, f"s{rank % 2}", 10.0) for rank, host in enumerate(hosts)]
        links.append(("s0", "s1", between))
        found[f"2 racks of {count // 2}, {between:g} between"] = (hosts, links, ["s0", "s1"])
    hosts = [f"h{rank}" for rank in range(8)]
    slow: Links = [(host, "s", 2.0 if host == "h0" else 10.0) for host in hosts]
    found["8 hosts, one with a link of 2"] = (hosts, slow, ["s"])
    found["8 hosts, one switch"] = (hosts, [(host, "s", 10.0) for host in hosts], ["s"])
    found["8 hosts, a chain"] = (hosts, [(f"h{i}", f"h{i + 1}", 10.0) for i in range(7)], [])
    return found


def shown(rate: Fraction) -> str:
    return f"{float(rate):.2f}"


# --- annotations ----------------------------------------------------------------------------------------------------


def two_layers(x: Any, w1: Any, w2: Any) -> dict[str, Any]:
    """A forward and a backward pass; the loss is half the sum of squares of y."""
    hidden = np.maximum(x @ w1, 0)
    y = hidden @ w2
    back = (y @ w2.T) * (hidden > 0)
    return {"y": y, "dw1": x.T @ back, "dw2": hidden.T @ y}


@case()
def annotations(o: Any) -> None:
    """Two layers on a mesh of 2 x 2 ranks: what is inferred from a few annotations, and the bytes of the collectives.

    It computes and sends nothing; tests/conformance/test_annotated_programs.py runs such plans on ranks.
    """
    from rabit.sharding import Annotation, Mesh, complete, trace

    rows_, columns, stored = Annotation(("data", None)), Annotation((None, "model")), Annotation(store=("data", None))
    choices = {
        "x: (data, -)": {"x": rows_},
        "x: (data, -), w1: (-, model)": {"x": rows_, "w1": columns},
        "x: (data, -), weights and gradients stored (data, -)": {
            "x": rows_, "w1": stored, "w2": stored, "dw1": stored, "dw2": stored,
        },
        "x, w1, w2: (data, -)": {"x": rows_, "w1": rows_, "w2": rows_},
    }  # fmt: skip
    program = trace(two_layers, (8, 4), (4, 16), (16, 4))
    found = []
    for said, annotated in choices.items():
        plan = complete(program, Mesh({"data": 2, "model": 2}), annotated)
        kinds = ", ".join(f"{step.kind} {step.bytes}" for move in plan.moves for step in move.steps if step.bytes)
        found.append([said, str(plan.spec("w2")), str(plan.spec("maximum")), kinds, plan.bytes])
    table(["annotations", "w2", "activations", "collectives, bytes", "bytes per rank"], found)


# --- svm ------------------------------------------------------------------------------------------------------------


@case(steps=400, methods=words("mean,qsgd:bits=4,wangni:ratio=0.1,topk:ratio=0.1,local:every=8"))
def svm(o: Any) -> None:
    """A linear support vector machine on handwritten digits, by each method on 4 ranks, beside scikit-learn's.

    Ten hinge losses, one for each digit against the others, and an L2 penalty; each rank takes batches of its own
    quarter. Needs scikit-learn.
    """
    import warnings

    from sklearn.svm import LinearSVC

    train, test, labels, answers = digits()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole = LinearSVC(loss="hinge", C=1 / (PENALTY * len(train)), max_iter=20000)
        whole.fit(train, labels)
    weights = np.vstack([whole.coef_.T, whole.intercept_])
    rows = [["scikit-learn, one process", hinge(weights, train, labels), 100 * right(weights, test, answers)]]
    rows += on_ranks(svm_rank, o, RANKS)[0]
    table(["method", "objective", "right, per cent"], rows)


PENALTY, LR = 1e-3, 0.5


def svm_rank(o: Any) -> list[tuple[str, float, float]]:
    import rabit
    from rabit import strategies

    rabit.init()
    train, test, labels, answers = digits()
    mine = slice(rabit.rank(), None, rabit.size())
    inputs, signs = with_ones(train[mine]), signs_of(labels[mine])
    found = []
    for method in o.methods:
        weights = np.zeros((train.shape[1] + 1, 10), np.float32)
        chance = np.random.default_rng(rabit.rank())
        strategy = strategies.make(method + small(method))
        trainer = strategies.ArrayTrainer({"w": weights}, strategy, lr=LR, name=method)
        for step in range(o.steps):
            trainer.set_lr(LR * (1 - step / o.steps))
            chosen = chance.integers(len(inputs), size=32)
            x, y = inputs[chosen], signs[chosen]
            wrong = (y * (x @ weights) < 1) * y
            gradient = PENALTY * weights - x.T @ wrong / len(chosen)
            trainer.step({"w": gradient.astype(np.float32)})
        trainer.pipeline.finish()
        mean = rabit.allreduce(weights, name=f"weights of {method}")
        found.append((method, hinge(mean, train, labels), 100 * right(mean, test, answers)))
    rabit.shutdown()
    return found


def small(method: str) -> str:
    """The weights have 2.6 KB, which methods otherwise leave to the mean."""
    if method == "mean" or method.startswith("local"):
        return ""
    return f"{',' if ':' in method else ':'}small=0"


def digits() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    found = load_digits()
    data = (found.data / 16).astype(np.float32)
    return tuple(train_test_split(data, found.target, test_size=0.25, random_state=0))


def with_ones(data: np.ndarray) -> np.ndarray:
    return np.hstack([data, np.ones((len(data), 1), np.float32)])


def signs_of(labels: np.ndarray) -> np.ndarray:
    return np.where(labels[:, None] == np.arange(10), 1, -1).astype(np.float32)


def hinge(weights: np.ndarray, data: np.ndarray, labels: np.ndarray) -> float:
    margins = signs_of(labels) * (with_ones(data) @ weights)
    return float(np.maximum(0, 1 - margins).mean(0).sum() + PENALTY / 2 * (weights**2).sum())


def right(weights: np.ndarray, data: np.ndarray, labels: np.ndarray) -> float:
    return float(((with_ones(data) @ weights).argmax(1) == labels).mean())


# --- sharded_step ---------------------------------------------------------------------------------------------------


@case(ranks=2, steps=20, turns=3, width=1024)
def sharded_step(o: Any) -> None:
    """A step of AdamW with the whole state on each rank, and with its part: bytes kept, and time.

    A model of 4 layers of `width`; ways take turns in the same processes. Bytes are counted: the optimizer's state, and
    the gradients that are there after the step.
    """
    found = on_ranks(sharded_rank, o, o.ranks)
    rows = []
    for way, cells in found[0].items():
        state, gradients, seconds = cells
        rows.append([way, f"{state:.1f} MB", f"{gradients:.1f} MB", f"{seconds * 1e3:.1f} ms"])
    table(["shard", "state of a rank", "gradients after the step", "a step"], rows)


def sharded_rank(o: Any) -> dict[str, list[float]]:
    import torch

    import rabit_torch

    rabit_torch.init()
    torch.set_num_threads(1)
    kept: dict[str, Any] = {}
    for way in ("none", "optimizer", "gradients"):
        torch.manual_seed(0)
        layers = [torch.nn.Linear(o.width, o.width) for _ in range(4)]
        model = torch.nn.Sequential(*layers)
        optimizer = rabit_torch.DistributedOptimizer(
            torch.optim.AdamW(model.parameters(), lr=1e-4),
            named_parameters=[(f"{way}.{name}", each) for name, each in model.named_parameters()],
            **({} if way == "none" else {"shard": way}),
        )
        kept[way] = model, optimizer
    batch = torch.randn(32, o.width)
    found: dict[str, list[float]] = {}
    seconds: dict[str, list[float]] = {way: [] for way in kept}
    for _ in range(o.turns):
        for way, (model, optimizer) in kept.items():
            for _ in range(o.steps):
                rabit_torch.barrier()
                began = time.perf_counter()
                model(batch).square().mean().backward()
                optimizer.step()
                seconds[way].append(time.perf_counter() - began)
                gradients = sum(each.grad.numel() * 4 for each in model.parameters() if has_gradient(each))
                optimizer.zero_grad()
            state = sum(
                value.numel() * 4
                for slots in optimizer.state.values()
                for value in slots.values()
                if torch.is_tensor(value) and value.numel() > 1
            )
            found[way] = [state / 1e6, gradients / 1e6, median(seconds[way])]
    rabit_torch.shutdown()
    return found


def has_gradient(parameter: Any) -> bool:
    try:
        return parameter.grad is not None and parameter.grad.untyped_storage().size() > 0
    except RuntimeError:  # A gradient that is divided has no values here.
        return False


# --- deadline -------------------------------------------------------------------------------------------------------


@case(slower=10.0, seconds=20.0, budget_ms=40.0)
def deadline(o: Any) -> None:
    """A linear regression on 4 ranks of which one is `slower` times slower: fixed batches, and as many as time allows.

    A sample takes 1 ms (sleep). "mean": each rank does 40 samples per step, and all wait for the slow one. "anybatch"
    and "dabmd": a step ends for each rank after `budget_ms`. All train for as many seconds. The gap is the mean square
    of the difference from the true weights.
    """
    rows = []
    for o.method in ("mean", "anybatch", "dabmd:graph=ring,rounds=2"):
        everybody = on_ranks(deadline_rank, o, RANKS, quiet=True)
        steps, gap = everybody[0]
        reached = next((at for at, value in gap if value < 0.02), None)
        last = max(each[1][-1][1] for each in everybody)
        rows.append([o.method, steps, f"{last:.4f}", f"{reached:.2f} s" if reached else "not reached"])
    table(["method", "steps", "gap at the end", "time to a gap of 0.02"], rows)


def deadline_rank(o: Any) -> tuple[int, list[tuple[float, float]]]:
    import rabit
    from rabit import strategies

    rabit.init()
    chance = np.random.default_rng(rabit.rank())
    truth = np.random.default_rng(7).standard_normal(64)
    weights = np.zeros(64, np.float32)
    method = strategies.make(o.method)
    trainer = strategies.ArrayTrainer({"w": weights}, method, lr=0.05)
    cost = 1e-3 * (o.slower if rabit.rank() == RANKS - 1 else 1)
    limit = strategies.Deadline(o.budget_ms / 1e3) if o.method != "mean" else None
    gaps: list[tuple[float, float]] = []
    rabit.barrier()
    began, steps = time.monotonic(), 0
    while rabit.allreduce(np.array([time.monotonic() - began]), name="time", op=rabit.Max)[0] < o.seconds:
        gradient, count = np.zeros(64), 0
        for _ in limit.of(range(10_000)) if limit else range(40):
            time.sleep(cost)
            x = chance.standard_normal(64)
            gradient += x * (x @ (weights - truth) + 0.1 * chance.standard_normal())
            count += 1
        if limit:
            method.samples = count
        trainer.step({"w": (gradient if limit else gradient / count).astype(np.float32)})
        steps += 1
        gaps.append((time.monotonic() - began, float(((weights - truth) ** 2).sum() / 64)))
    trainer.pipeline.finish()
    rabit.shutdown()
    return steps, gaps
