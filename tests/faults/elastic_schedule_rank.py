"""A process of an elastic job that elastic_schedules.py plays; it kills itself when the schedule says so."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

FOLDER, STEPS, KILLS, KIND = Path(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3]), sys.argv[4]
ME = int(os.environ["RABIT_RANK"])
PACE_S = 0.03  # A job that is over at once meets no newcomer.


def die(phase: str) -> None:
    (FOLDER / f"killed.{ME}").write_text(json.dumps([phase, time.time()]))
    os.kill(os.getpid(), signal.SIGKILL)


def meet(phase: str, at: int, *, is_at_once: bool = True) -> None:
    """Ends this process, now or soon, if this is the moment."""
    for member, when, number, after_ms in KILLS:
        if (member, when) == (ME, phase) and number == at:
            if is_at_once:
                die(phase)
            timer = threading.Timer(after_ms / 1000, die, [phase])
            timer.daemon = True
            timer.start()


def newcomer(phase: str, *, is_at_once: bool = True) -> None:
    for each in {number for member, when, number, _ in KILLS if (member, when) == (ME, phase)}:
        meet(phase, each, is_at_once=is_at_once)


newcomer("start", is_at_once=False)

# A newcomer may be lost while it imports.
sys.path.insert(0, str(Path(__file__).parent))
from elastic_work import ArrayWork, TorchWork  # noqa: E402

import rabit  # noqa: E402
import rabit.elastic  # noqa: E402
from rabit.checkpoint import Checkpoint  # noqa: E402

rabit.init()
newcomer("admitted")
work = TorchWork(KIND) if KIND else ArrayWork()
state = work.state
resets: list[int] = []
losses: list[int] = []
commits: list[tuple[int, int, int, float]] = []


def reset() -> None:
    resets.append(1)
    meet("reset", len(resets))


state.register_reset_callbacks([reset])


def step(rows, checkpoint) -> None:
    meet("before", state.step)
    work.send((rabit.rank() + 1) * (state.step + 1))
    everybody = rabit.allgather(rows, name="rows").tolist()
    meet("sent", state.step)
    work.update()
    state.step += 1
    state.sizes.append(rabit.size())
    state.seen.append([state.sampler.epoch, sorted(everybody)])
    state.sampler.record_batch(0, len(rows))
    meet("commit", state.step)
    state.save()
    state._commits += 1
    commits.append((state.step, rabit.size(), len(resets), time.time()))
    if state.step % 3 == 0:
        checkpoint.save({"weights": work.weights(), "sizes": state.sizes}, step=state.step)
        meet("save", state.step, is_at_once=False)
    state.check_host_updates()


def epoch(checkpoint) -> None:
    for rows in work.batches():
        if rabit.rank() == 0:
            time.sleep(PACE_S)
        try:
            step(rows, checkpoint)
        except rabit.RabitError:
            losses.append(1)
            meet("recovery", len(losses), is_at_once=False)
            raise
        if state.step == STEPS:
            return
    state.sampler.set_epoch(state.sampler.epoch + 1)


@rabit.elastic.run
def train(state) -> None:
    checkpoint = Checkpoint(FOLDER / "checkpoints", keep=2)
    while state.step < STEPS:
        epoch(checkpoint)
    checkpoint.wait()


train(state)
result = {"weights": work.weights().tolist(), "sizes": state.sizes, "seen": state.seen, "commits": commits}
(FOLDER / f"result.{ME}").write_text(json.dumps(result))
