"""Gradients that threads of autograd bring at the same time."""

from __future__ import annotations

import sys
import threading
import time
from types import SimpleNamespace

import pytest
import torch

from rabit_torch.optimizer.arrivals import GradientArrivals
from rabit_torch.optimizer.requests import Reduction
from rabit_torch.parameter_state import ParameterState

ROUNDS, PARAMETERS = 20, 64


class Queue:
    """Counts what is sent; two threads in it at once would make the counts wrong."""

    def __init__(self):
        self.sent, self.pending, self.pending_bytes = [], [], 0
        self.packs = []

    def add(self, state):
        pending = list(self.pending)
        time.sleep(0)
        self.pending = [*pending, state.name]
        self.pending_bytes += state.bytes

    def flush(self):
        pending = self.pending
        time.sleep(0)
        self.sent += pending
        self.pending, self.pending_bytes = [], 0

    def next_step(self):
        self.sent = []


class Requests:
    reduction = Reduction()
    engine = SimpleNamespace(joins=0)

    def note_kind(self, state, grad):
        state.kind = (grad.dtype, grad.numel())


@pytest.fixture
def many_switches():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_each_gradient_is_sent_once_by_two_threads(many_switches):
    """Autograd has a thread for each device."""
    states = []
    for index in range(PARAMETERS):
        parameter = torch.nn.Parameter(torch.zeros(1 if index % 2 else 64 * 1024))
        parameter.grad = torch.zeros_like(parameter)
        states.append(ParameterState(parameter, f"gradient.{index}", index, None))
        states[-1].route = SimpleNamespace(stream=None)
    queue = Queue()
    mode = SimpleNamespace(crossing=None, sends_in_backward=True)
    meetings = SimpleNamespace(meeting=SimpleNamespace(joins=0, is_open=False))
    arrivals = GradientArrivals(
        SimpleNamespace(states=states, packs=[]), Requests(), queue, mode, meetings
    )
    wanted = sorted(state.name for state in states)

    for _ in range(ROUNDS):
        for state in states:
            state.grad = None
        arrivals.next_step()
        begin = threading.Barrier(2)

        def deliver(mine, begin=begin):
            begin.wait()
            for state in mine:
                arrivals.arrived(state.index)

        half = len(states) // 2
        threads = [
            threading.Thread(target=deliver, args=(mine,)) for mine in (states[:half], states[half:])
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        queue.flush()
        assert sorted(queue.sent) == wanted
