"""The state of an optimizer on its way to the other ranks."""

from __future__ import annotations


def test_optimizer_state_travels_for_every_optimizer(on_ranks):
    """Rank 0 has trained and loaded a state, which adds to its hyper-parameters; the others begin."""
    results = on_ranks(
        2,
        """
import inspect
from torch import nn

rank = rabit.rank()
Base = torch.optim.Optimizer
kinds = [each for each in vars(torch.optim).values() if inspect.isclass(each) and issubclass(each, Base)]
made = [
    (kind, options)
    for kind in kinds if kind is not Base
    for options in ({}, {"lr": torch.tensor(0.02 * (rank + 1))}, {"foreach": False}, {"fused": True}, {"momentum": 0.9})
    if set(options) <= set(inspect.signature(kind).parameters)
]


def plain(value):
    if isinstance(value, torch.Tensor):
        return [str(value.dtype), value.tolist()]
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, list | tuple) else value


def step(model, optimizer):
    def closure():
        optimizer.zero_grad()
        loss = model(torch.tensor([0, 2])).square().sum()
        loss.backward()
        return loss
    optimizer.step(closure)


seen = {}
for kind, options in made:
    torch.manual_seed(rank)
    model = nn.Embedding(4, 3, sparse=kind is torch.optim.SparseAdam)
    optimizer = kind(model.parameters(), **options)
    if rank == 0:
        step(model, optimizer)
        optimizer.load_state_dict(optimizer.state_dict())
        step(model, optimizer)
    rabit.broadcast_optimizer_state(optimizer, root_rank=0)
    rabit.broadcast_parameters(model.state_dict(), root_rank=0)
    state = plain(optimizer.state_dict())
    step(model, optimizer)
    seen[f"{kind.__name__} {sorted(options)}"] = [state, plain(model.state_dict())]
report(seen)
""",
    )

    assert results[0].keys() == results[1].keys() and len(results[0]) > 30
    assert [name for name, found in results[0].items() if found != results[1][name]] == []
    assert {name for name, (state, _) in results[0].items() if not state["state"]} <= {
        "SGD []", "SGD ['lr']", "SGD ['foreach']", "SGD ['fused']",
    }  # fmt: skip
