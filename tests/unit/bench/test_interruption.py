"""Signals that end a long measurement: which rank raises, how often, and what Python would lose."""

from __future__ import annotations

import os
import signal
import sys
import time

import pytest

from rabit.bench.interruption import Interrupted, interruptions


def send(number: int = signal.SIGTERM) -> None:
    os.kill(os.getpid(), number)


def handlers():
    return [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)]


class Dropped:
    """A signal falls into its end."""

    def __del__(self):
        send()


def test_the_first_signal_raises_on_rank_0_and_later_ones_do_nothing():
    with interruptions(0) as signals:
        with pytest.raises(Interrupted, match="SIGTERM"):
            send()
        send(signal.SIGINT)
    assert signals.status == 128 + signal.SIGTERM


def test_other_ranks_note_it():
    with interruptions(1) as signals:
        send()
    assert signals.signum == signal.SIGTERM


def test_one_that_falls_into_a_del_is_raised_after_it(capfd):
    before, hook = handlers(), sys.unraisablehook
    with interruptions(0) as signals:
        with pytest.raises(Interrupted, match="SIGTERM"):
            Dropped()
            for _ in range(1000):
                time.sleep(0.01)
        time.sleep(0.05)  # Once only.
    assert signals.signum == signal.SIGTERM
    assert capfd.readouterr().err == ""
    assert handlers() == before and sys.unraisablehook is hook


def test_what_else_falls_into_a_del_goes_where_it_went(monkeypatch):
    class Broken:
        def __del__(self):
            raise ValueError("of the user")

    seen = []
    monkeypatch.setattr(sys, "unraisablehook", lambda dropped: seen.append(str(dropped.exc_value)))
    with interruptions(0):
        Broken()
    assert seen == ["of the user"]
