"""Two waves share room: who may take more, and who waits."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import rabit
from rabit.training.wave_board import WaveBoard, make_board_file


@pytest.fixture
def boards():
    path = make_board_file()
    pair = [WaveBoard(path, wave, room=1.25, timeout=20.0) for wave in (0, 1)]
    Path(path).unlink()
    yield pair
    for board in pair:
        board.close()


def learn(board: WaveBoard, count: int = 100) -> None:
    board.begin_forward()
    board.take(count)
    board.begin_backward()
    board.give_back(count)
    board.end()


def test_a_wave_alone_takes_what_it_needs(boards):
    learn(boards[0], 100)

    assert (boards[0].peak_bytes, boards[0].live_bytes, boards[0].waits) == (100, 0, 0)


def test_the_second_in_its_forward_pass_leaves_room_for_the_first(boards):
    tick, tock = boards
    learn(tick)
    learn(tock)
    tick.begin_forward()
    tock.begin_forward()
    tock.take(25)
    tick.take(100)  # The first waits for nobody.

    assert not tock._has_room(1)
    tick.begin_backward()
    tick.give_back(60)
    assert tock._has_room(60) and not tock._has_room(61)
    tick.give_back(37)  # The rest may wait for the gradients of this rank.
    assert tock._has_room(1000)
    tick.end()
    assert tock._has_room(1000)


def test_a_wave_goes_on_when_the_other_has_given_back(boards):
    tick, tock = boards
    learn(tick)
    learn(tock)
    tick.begin_forward()
    tick.take(100)
    tock.begin_forward()
    has_taken = threading.Event()
    taker = threading.Thread(target=lambda: (tock.take(80), has_taken.set()))
    taker.start()
    tick.begin_backward()
    tick.give_back(50)
    assert not has_taken.is_set()  # 80 and 50 are more than 125.
    tick.give_back(10)
    taker.join(20)

    assert has_taken.is_set() and tock.waits == 1


def test_in_the_first_pass_of_all_the_second_waits_for_the_backward_pass(boards):
    tick, tock = boards
    tick.begin_forward()
    tick.take(100)
    tock.begin_forward()
    assert not tock._has_room(1)
    tick.begin_backward()

    assert tock._has_room(25) and not tock._has_room(26)


def test_a_wave_that_has_failed_holds_nobody_up(boards):
    tick, tock = boards
    learn(tick)
    learn(tock)
    tick.begin_forward()
    tick.take(100)
    tock.begin_forward()
    assert not tock._has_room(50)
    tick.end()

    assert tock._has_room(50)


def test_waiting_has_an_end():
    path, now = make_board_file(), [0.0]

    def clock() -> float:
        now[0] += 1.0
        return now[0]

    tick, tock = WaveBoard(path, 0), WaveBoard(path, 1, timeout=5.0, clock=clock)
    Path(path).unlink()
    tick.begin_forward()
    tick.take(100)
    tock.begin_forward()

    with pytest.raises(
        rabit.TimedOut, match=r"wave 1 waits for 7 bytes .* in phase FORWARD, keeps 100"
    ):
        tock.take(7)
