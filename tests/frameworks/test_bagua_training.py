"""What Bagua's tests ask of training with torch: optimizers that update many parameters at once, and unused ones.

Gan et al., "BAGUA: Scaling up Distributed Learning with System Relaxations", 2021: test_fused_optimizer and
test_bagua_ddp of its released code.  Its load-balancing sampler and its cached data set have no counterpart here.
"""

from __future__ import annotations

NET = """
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.fc1, self.fc2, self.fc3 = nn.Linear(6, 30), nn.Linear(30, 4), nn.Linear(6, 200)

    def forward(self, x):
        return self.fc2(torch.relu(self.fc1(x)))


def batch(step):
    return torch.randn(8, 6, generator=torch.Generator().manual_seed(step))
"""

# Twenty-one, as there.
OPTIMIZERS = """
from torch.optim import ASGD, NAdam, RAdam, SGD, Adadelta, Adagrad, Adam, Adamax, AdamW, RMSprop, Rprop

CONFIGURATIONS = [
    (SGD, {}),
    (SGD, {"momentum": 0.9}),
    (SGD, {"momentum": 0.9, "dampening": 0.1}),
    (SGD, {"momentum": 0.9, "weight_decay": 0.1}),
    (SGD, {"momentum": 0.9, "nesterov": True}),
    (Adam, {}),
    (Adam, {"weight_decay": 0.1}),
    (Adam, {"amsgrad": True}),
    (AdamW, {}),
    (AdamW, {"weight_decay": 0.1, "amsgrad": True}),
    (Adamax, {}),
    (NAdam, {}),
    (RAdam, {}),
    (RMSprop, {}),
    (RMSprop, {"momentum": 0.9}),
    (RMSprop, {"centered": True, "weight_decay": 0.1}),
    (Rprop, {}),
    (ASGD, {}),
    (Adagrad, {}),
    (Adagrad, {"lr_decay": 0.1}),
    (Adadelta, {}),
]


def trained(kind, arguments, wrap, steps=101):
    model = Net()
    optimizer = kind(model.parameters(), lr=1e-3, **arguments)
    if wrap:
        optimizer = rabit.DistributedOptimizer(optimizer, model.named_parameters())
    for step in range(steps):
        optimizer.param_groups[0]["foreach"] = step % 2 == 0
        optimizer.zero_grad(set_to_none=False)
        model(batch(step)).square().mean().backward()
        if not wrap and model.fc3.weight.grad is None:  # Horovod's rule for what took no part.
            for each in model.fc3.parameters():
                each.grad = torch.zeros_like(each)
        optimizer.step()
    return [each.detach().numpy().tobytes().hex() for each in model.parameters()]


report([
    trained(kind, arguments, True) == trained(kind, arguments, False)
    for kind, arguments in CONFIGURATIONS
])
"""

UNUSED = """
def of_a_step(find_unused):
    model = Net()
    optimizer = rabit.DistributedOptimizer(
        SGD(model.parameters(), lr=0.1), model.named_parameters(), find_unused_parameters=find_unused
    )
    for step in range(3):
        before = rabit.statistics()["kinds"]["allreduce"]["bytes"] if step else 0
        optimizer.zero_grad()
        model(batch(step)).square().mean().backward()
        optimizer.step()
    sent = rabit.statistics()["kinds"]["allreduce"]["bytes"] - before
    return sent, [name for name, each in model.named_parameters() if each.grad is not None]


from torch.optim import SGD

report([of_a_step(True), of_a_step(False)])
"""


def test_updates_of_many_parameters_at_once_and_of_each_alone_take_turns(on_ranks):
    """Asserted: for 21 optimizers, 101 steps, every other one with torch's foreach and the rest without, end in
    the bits of the same optimizer without ranks; both ranks have the same batches, so that the mean is exact.
    """
    assert on_ranks(2, NET + OPTIMIZERS) == [[True] * 21] * 2


def test_exactly_the_parameters_that_are_used_travel_where_that_is_asked(on_ranks):
    """Asserted: of fc1, fc2 and fc3, of which fc3 is unused, a step sends the bytes of the gradients of fc1 and fc2
    alone with find_unused_parameters=True (and fc3 has no gradient), and of all three without.
    """
    used, unused = 4 * (6 * 30 + 30 + 30 * 4 + 4), 4 * (6 * 200 + 200)

    for found, every in on_ranks(2, NET + UNUSED):
        assert used <= found[0] <= used + 64  # The rest agrees on what is unused.
        assert found[1] == ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"]
        assert used + unused <= every[0] <= used + unused + 64
        assert every[1] == [*found[1], "fc3.weight", "fc3.bias"]
