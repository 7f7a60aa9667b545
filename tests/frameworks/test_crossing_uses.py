"""Which parameters overlap="next-forward" sees in use."""

from __future__ import annotations

SETUP = """
import warnings
from torch import nn
from torch.utils.checkpoint import checkpoint

torch.manual_seed(3)


class Product(torch.autograd.Function):
    @staticmethod
    def forward(context, x, weight):
        context.save_for_backward(x, weight)
        return x @ weight.t()

    @staticmethod
    def backward(context, gradient):
        x, weight = context.saved_tensors
        return gradient @ weight, gradient.t() @ x


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))

    def forward(self, x):
        return Product.apply(x, self.weight)


class Unseen(torch.autograd.Function):
    @staticmethod
    def forward(context, x, weight):
        with torch._C.DisableTorchFunctionSubclass():  # as code outside of Python reads
            context.save_for_backward(x, weight)
            return x @ weight.t()

    backward = Product.backward


class Model(nn.Module):
    def __init__(self, product):
        super().__init__()
        self.first, self.second, self.third = nn.Linear(4, 4), Layer(), nn.Linear(4, 4)
        self.product = product

    def forward(self, x):
        x = self.second(self.first(x))
        if self.product is Unseen:
            return Unseen.apply(x, self.third.weight)
        return checkpoint(self.third, x, use_reentrant=True)


def run(product, evaluated=None):
    model = Model(product)
    if evaluated is not None:
        getattr(model, evaluated).eval()
    optimizer = rabit.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), overlap="next-forward"
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(3):
            optimizer.zero_grad()
            model(torch.ones(2, 4, requires_grad=True)).sum().backward()
            optimizer.step()
        pending = sorted(optimizer.pending_updates)
    texts = [str(each.message) for each in caught if "inside step()" in str(each.message)]
    optimizer.flush()
    (found,) = list(rabit.statistics()["overlap"]["bytes"].values())[-1:]
    return pending, texts, found
"""


def test_reads_without_gradient_mode_in_a_forward_pass_count(on_ranks):
    results = on_ranks(2, SETUP + "report(run(Product))\n")

    everything = ["first.bias", "first.weight", "second.weight", "third.bias", "third.weight"]
    for pending, texts, found in results:
        assert pending == everything
        assert texts == []
        assert found == {"crossing": 4 * (3 * 16 + 2 * 4), "in_step": 0}


def test_layers_in_evaluation_mode_count_within_a_model_that_trains(on_ranks):
    for pending, texts, found in on_ranks(2, SETUP + "report(run(Product, 'second'))\n"):
        assert "second.weight" in pending
        assert texts == []
        assert found["in_step"] == 0


def test_reads_of_an_evaluation_do_not_count(on_ranks):
    """A step whose forward pass nobody sees, with an evaluation before it, waits for its gradients."""
    script = """
model = Model(Unseen)
optimizer = rabit.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), overlap="next-forward"
)
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    for step in range(3):
        model.product = Product
        model.eval()
        with torch.no_grad():
            model(torch.ones(2, 4))
        model.product = Unseen
        model.train()
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    pending = sorted(optimizer.pending_updates)
optimizer.flush()
report(pending)
"""
    for pending in on_ranks(2, SETUP + script):
        assert "first.weight" in pending
        assert "third.weight" not in pending


def test_one_warning_names_what_cannot_cross(on_ranks):
    results = on_ranks(2, SETUP + "report(run(Unseen))\n")

    for pending, texts, found in results:
        assert "third.weight" not in pending and "first.weight" in pending
        (text,) = texts
        assert "'third.weight'" in text and "(64 of 224 bytes)" in text
        assert found == {"crossing": 160, "in_step": 64}
