"""Futures of backend "rabit" in backward passes: who completes them, and when."""

from __future__ import annotations

import contextlib

import pytest
import torch

from rabit_torch.distributed import futures

TRAINING = """
import threading
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
import rabit_torch.distributed

dist.init_process_group("rabit", rank=rabit.rank(), world_size=2)
torch.manual_seed(0)
layers = [torch.nn.Linear(16, 16) for _ in range(4)]
model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=0.001)

def gradients_are_averages():
    answers = []
    for step in range(3):
        model.zero_grad()
        x = torch.full((2, 16), step + 1.0 + rabit.rank())
        model(x).sum().backward()
        mine = torch.autograd.grad(model.module(x).sum(), list(model.parameters()))
        for parameter, own in zip(model.parameters(), mine, strict=True):
            total = own.clone()
            dist.all_reduce(total)
            answers.append(torch.allclose(parameter.grad, total / 2, rtol=1e-5, atol=1e-5))
    return all(answers)

def completion_threads():
    return [each.name for each in threading.enumerate() if each.name == "rabit completion"]
"""
END = "\ndist.destroy_process_group()\n"


def test_ddp_needs_no_thread_for_its_futures(on_ranks):
    results = on_ranks(
        2, TRAINING + "report([gradients_are_averages(), completion_threads()])" + END
    )

    assert results == [[True, []]] * 2


class Noted:
    """torch.cuda.device and torch's Future without a GPU: which device is current when one completes."""

    def __init__(self, monkeypatch):
        self.current, self.at_result = 0, []
        monkeypatch.setattr(torch.cuda, "device", self.device)
        monkeypatch.setattr(futures, "_devices_of", lambda outputs: list(outputs) or None)

    @contextlib.contextmanager
    def device(self, device):
        before, self.current = self.current, torch.device(device).index
        yield
        self.current = before

    def note(self, *_):
        self.at_result.append(self.current)


def test_a_future_completes_with_the_device_of_its_outputs_current(monkeypatch):
    noted = Noted(monkeypatch)

    class Future:
        def __init__(self, *, devices=None):
            self.set_result = noted.note

        def then(self, callback):
            return self

    monkeypatch.setattr(torch.futures, "Future", Future)
    for outputs in ([torch.device("cuda", 3)], []):
        futures._Waiting([], noted.note, outputs).complete()

    assert (noted.at_result, noted.current) == ([3, 3, 0, 0], 0)


@pytest.mark.parametrize("fails", [False, True])
def test_a_future_of_a_backward_pass_settles_with_the_device_of_its_outputs_current(
    monkeypatch, fails
):
    noted = Noted(monkeypatch)

    def finish():
        noted.note()
        if fails:
            raise ValueError

    monkeypatch.setattr(torch.futures.Future, "__init__", lambda self, *, devices=None: None)
    future = futures._AwaitedFuture.__new__(futures._AwaitedFuture, devices=[])
    future.__init__(futures.Completion(), [], finish, [torch.device("cuda", 3)])
    future.set_result = future.set_exception = noted.note
    future.settle()

    assert (noted.at_result, noted.current) == ([3, 3], 0)


HOOKS = {
    "wait": "return future.wait()[0]",
    "then": "return future.then(lambda done: [done.value()[0]]).wait()[0]",
    "done": "while not future.done():\n        pass\n    return future.value()[0]",
}


@pytest.mark.parametrize("asks", list(HOOKS))
def test_a_future_that_python_asks_for_in_a_backward_pass_completes_there(on_ranks, asks):
    results = on_ranks(
        2,
        TRAINING
        + f"""
def reduced(future):
    {HOOKS[asks]}

def hook(state, bucket):
    work = dist.all_reduce(bucket.buffer().div_(2), async_op=True)
    answer = torch.futures.Future()
    answer.set_result(reduced(work.get_future()))
    return answer

model.register_comm_hook(None, hook)
report([gradients_are_averages(), len(completion_threads())])
"""
        + END,
    )

    assert results == [[True, 1]] * 2


def test_chained_futures_of_a_hook_complete_within_the_backward_pass(on_ranks):
    results = on_ranks(
        2,
        TRAINING
        + """
seen = []

def hook(state, bucket):
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    def halved(done):
        (reduced,) = done.value()
        seen.append(reduced.numel())
        return reduced / 2
    return work.get_future().then(halved)

model.register_comm_hook(None, hook)
report([gradients_are_averages(), len(seen) > 0])
"""
        + END,
    )

    assert results == [[True, True]] * 2


@pytest.mark.parametrize("hook", ["", "model.register_comm_hook(None, rabit_torch.ddp_hook)"])
def test_a_static_graph_is_reduced_at_the_end_of_its_first_backward_pass(on_ranks, hook):
    results = on_ranks(
        2,
        TRAINING
        + f"""
model = DistributedDataParallel(model.module, static_graph=True)
{hook}
report(gradients_are_averages())
"""
        + END,
    )

    assert results == [True, True]
