"""Models, data and comparisons for the scripts about modes that cross the end of a step."""

import hashlib
import os
import warnings

import torch
from torch import nn

import rabit_torch as rabit

MODE = os.environ.get("CROSSING", "next-forward")
torch.set_num_threads(1)


def check(condition, *words):
    if not condition:
        raise AssertionError(" ".join(map(str, words)) or "condition does not hold")


def fails(error, function, *words):
    try:
        function()
    except error as found:
        check(all(word in str(found) for word in words), str(found))
    else:
        raise AssertionError(f"no {error.__name__}")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 20)
        self.norm = nn.LayerNorm(20)
        self.last = nn.Linear(20, 4)

    def forward(self, x):
        return self.last(torch.tanh(self.norm(self.first(x))))


def make(kind=Net):
    torch.manual_seed(3)
    return kind()


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def adam(model):
    return torch.optim.Adam(model.parameters(), lr=0.01)


def wrap(model, optimizer=sgd, overlap=MODE, **more):
    return rabit.DistributedOptimizer(
        optimizer(model), model.named_parameters(), overlap=overlap, **more
    )


def data(step, rank=None):
    rank = rabit.rank() if rank is None else rank
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(5, 6, generator=generator), torch.randn(5, 4, generator=generator)


def loss_of(model, step):
    x, y = data(step)
    return (model(x) - y).square().mean()


def digest(model):
    flat = torch.cat([p.detach().double().reshape(-1) for p in model.parameters()])
    return hashlib.sha256(flat.numpy().tobytes()).hexdigest()


def in_flight(optimizer):
    return len(optimizer.pending_updates)


def train(
    overlap, kind=Net, optimizer=sgd, steps=5, loss=loss_of, between=None, after=None, **more
):
    """Trains and returns (model, digest); between(model, optimizer, step) runs before step()."""
    model = make(kind)
    wrapped = wrap(model, optimizer, overlap, **more)
    for step in range(steps):
        wrapped.zero_grad()
        loss(model, step).backward()
        if between:
            between(model, wrapped, step)
        wrapped.step()
        if after:
            after(model, wrapped, step)
    return model, digest(model)


def same(**arguments):
    """The mode that crosses ends with the bits of the barrier, and all ranks with the same."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = train("backward", **arguments)[1]
        found = train(MODE, **arguments)[1]
    check(found == expected, "other weights than with the barrier")
    check(len(set(rabit.allgather_object(found))) == 1, "ranks differ")


def count_in_flight(counts):
    return lambda model, optimizer, step: counts.append(in_flight(optimizer))
