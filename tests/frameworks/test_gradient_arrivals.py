"""Gradients that threads of autograd bring at the same time."""

from __future__ import annotations

import sys
import threading
import time
from types import SimpleNamespace

import pytest
import torch

from rabit_torch.optimizer.arrivals import GradientArrivals
from rabit_torch.parameter_state import Pack, ParameterState

ROUNDS, MEMBERS = 20, 16


class SlowPack(Pack):
    """Other threads run between the reading of `arrived` and the writing."""

    @property
    def arrived(self):
        count = self.count
        time.sleep(0)
        return count

    @arrived.setter
    def arrived(self, count):
        self.count = count


class Sender:
    """Counts what is sent; two threads in it at once would make the counts wrong."""

    def __init__(self):
        self.sent, self.pending, self.pending_bytes = [], [], 0

    def note_kind(self, state, grad):
        state.dtype, state.count = grad.dtype, grad.numel()

    def queue(self, state):
        pending = list(self.pending)
        time.sleep(0)
        self.pending = [*pending, state.name]
        self.pending_bytes += state.bytes

    def flush(self, is_halved):
        pending = self.pending
        time.sleep(0)
        self.sent += pending
        self.pending, self.pending_bytes = [], 0

    def send_pack(self, pack, is_halved):
        self.sent.append(pack.name)


@pytest.fixture
def many_switches():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_each_gradient_is_sent_once_by_two_threads(many_switches):
    """Autograd has a thread for each device."""
    states = []
    for index in range(4 * MEMBERS):
        parameter = torch.nn.Parameter(torch.zeros(1 if index % 2 else 64 * 1024))
        parameter.grad = torch.zeros_like(parameter)
        states.append(ParameterState(parameter, f"gradient.{index}", index, None))
    pack = SlowPack(states[1::2], "gradient")
    for state in pack.states:
        state.pack = pack
    sender = Sender()
    mode = SimpleNamespace(crossing=None, sends_in_backward=True, is_halved=False)
    arrivals = GradientArrivals(
        SimpleNamespace(states=states, packs=[pack]),
        sender,
        None,
        mode,
        SimpleNamespace(before_gradients=lambda: None),
        sparse_as_dense=False,
        waits_after_backward=False,
    )
    wanted = sorted([pack.name, *(state.name for state in states[::2])])

    for _ in range(ROUNDS):
        for state in states:
            state.grad = None
        arrivals.next_step()
        sender.sent = []
        begin = threading.Barrier(2)

        def deliver(mine, begin=begin):
            begin.wait()
            for state in mine:
                arrivals.arrived(state.index)

        half = len(states) // 2
        threads = [
            threading.Thread(target=deliver, args=(each,))
            for each in (states[:half], states[half:])
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        arrivals.flush()
        assert sorted(sender.sent) == wanted
