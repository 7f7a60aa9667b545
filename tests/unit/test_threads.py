"""Threads of the package."""

from __future__ import annotations

import signal
import threading
import time

import pytest

from rabit import ResourceExhausted
from rabit.threads import Call, start_thread


@pytest.fixture
def no_thread(monkeypatch):
    """The system starts no further thread, as at the limit of a container."""

    def refuse(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)


@pytest.mark.parametrize("start", [start_thread, Call])
def test_a_thread_that_the_system_refuses_is_an_error_in_words(no_thread, start):
    with pytest.raises(ResourceExhausted) as error:
        start(lambda: None, "watch")

    assert "the thread 'watch' cannot be started: can't start new thread. The user or the" in str(error.value)
    assert "raise the limit ('ulimit -u', or pids.max of the container)" in str(error.value)


def test_a_call_on_a_thread_gives_what_it_returns_and_raises():
    assert Call(lambda: 7, "seven").result() == 7
    with pytest.raises(ZeroDivisionError):
        Call(lambda: 1 // 0, "nothing").result()


def test_a_signal_that_does_not_wake_the_main_thread_ends_the_wait_all_the_same():
    """As one that comes in the moment before it sleeps: its handler's turn has come, and nothing says so."""
    waits, over = threading.Event(), threading.Event()

    def make():
        waits.wait(60)
        time.sleep(0.05)
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        over.wait(60)

    call = Call(make, "elsewhere")
    with pytest.raises(KeyboardInterrupt):
        waits.set()
        call.result()
    assert not call.wait(0)
    over.set()
    assert call.wait(60)


def test_a_call_that_ends_as_a_signal_comes_is_over():
    def make():
        time.sleep(0.05)  # Until the main thread waits.
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    call = Call(make, "elsewhere")
    with pytest.raises(KeyboardInterrupt):
        while True:
            call.wait(0.1)

    assert call.wait(1)


def test_init_without_a_thread_says_so(no_thread):
    from rabit.engine.interruptible import interruptible

    with pytest.raises(ResourceExhausted, match="rabit-call"):
        interruptible("a start", lambda: None)
