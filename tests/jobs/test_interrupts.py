"""Ctrl-C in loops of quick calls, whose handles end all the time: none is lost."""

from __future__ import annotations

import subprocess
import sys

TRIES = 300
PROGRAM = """
import os, random, signal, threading, time
import numpy as np
import rabit

rabit.init()
dice, x = random.Random(1), np.ones(64, np.float32)

def send(after_s):
    time.sleep(after_s)
    os.kill(os.getpid(), signal.SIGINT)

lost = 0
for number in range(TRIES):
    sending = threading.Thread(target=send, args=(dice.uniform(0.001, 0.01),))
    try:
        sending.start()
        until = time.monotonic() + 20
        while time.monotonic() < until:
            rabit.allreduce_async(x, name=f"begun{number}").wait()
            rabit.allreduce_(x, name=f"in_place{number}")
            rabit.allreduce(x, name=f"blocking{number}")
        lost += 1
    except KeyboardInterrupt:
        pass
    sending.join()
print("lost", lost)
"""


def test_no_interrupt_is_lost_where_it_falls_into_the_end_of_a_handle():
    program = PROGRAM.replace("TRIES", str(TRIES))

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=110
    )

    assert done.stdout.split() == ["lost", "0"], done.stderr[-2000:]
