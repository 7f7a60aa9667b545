"""RankServer: a process that has imported a framework and forks ranks, so that they start at once.

Importing torch or MXNet costs a rank nearly three seconds of a processor, and hundreds of tests start
ranks.  Only what the program below imports is shared: the rank's own modules, rabit's among them,
its environment, its folder, its files and its end are those of a process started by itself, except
that what is shared is not freed.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import gc
import json
import os
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

CLIENT = Path(__file__).with_name("served_rank.py")


class RankServer:
    """Runs for as long as the tests do.  `command` is what a launcher starts in place of Python.

    framework: "torch" or "mxnet", which the ranks find imported.
    """

    def __init__(self, framework: str = "torch") -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="rabit-ranks-")
        address = str(Path(self._folder.name, "socket"))
        # It ends when its input does: however the tests end, it is not left behind.
        self._process = subprocess.Popen(
            [sys.executable, __file__, address, framework],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n", "the rank server did not start"
        self.command = [sys.executable, "-I", "-S", str(CLIENT), address]

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.terminate()  # a process that a test forked and left may hold its input open
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(timeout=60)
        self._folder.cleanup()


def serve(address: str) -> list[str]:
    """Forks until its input ends; returns in each rank, with the rank's arguments."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(64)
    gc.freeze()  # what is there already stays shared with the ranks
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the guards
    os.write(1, b"ready\n")
    while True:
        readable, _, _ = select.select([listener, 0], [], [])
        if 0 in readable:
            os._exit(0)
        link, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            return guard(link)
        link.close()


def guard(link: socket.socket) -> list[str]:
    """Forks the rank, tells its client how it ends, and kills it if the client goes first."""
    header, files, _, _ = socket.recv_fds(link, 4, 100)
    (length,) = struct.unpack("!I", header)
    order = json.loads(link.makefile("rb").read(length))
    rank = os.fork()
    if rank == 0:
        return become_rank(link, files, order)
    for file in (0, 1, 2, *files):
        os.close(file)  # a reader of the rank's output must see its end
    with contextlib.suppress(OSError):  # a client that has ended already: its link is readable below
        link.sendall(f"{rank}\n".encode())
    ends = os.pidfd_open(rank)
    readable, _, _ = select.select([ends, link], [], [])
    if ends not in readable:
        os.kill(rank, signal.SIGKILL)
    _, status = os.waitpid(rank, 0)
    if ends in readable:
        link.sendall(f"{status}\n".encode())
    os._exit(0)


def become_rank(link: socket.socket, files: list[int], order: dict) -> list[str]:
    link.close()
    above = 1 + max(*files, *order["files"])  # out of the way of the numbers that they get
    moved = [fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, above) for file in files]
    for file in files:
        os.close(file)
    for file, number in zip(moved, order["files"], strict=True):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(order["environment"])
    os.chdir(order["folder"])
    os.sched_setaffinity(0, order["processors"])
    sys.stdout.reconfigure(write_through=bool(os.environ.get("PYTHONUNBUFFERED")))
    return order["arguments"]


def import_torch() -> None:
    import numpy  # noqa: F401
    import torch._dynamo  # noqa: F401  (torch too; the first optimizer would import it)


def import_mxnet() -> None:
    """Leaves NumPy as it is: that rabit_mxnet puts back what MXNet needs of it is for the rank to see."""
    import numpy as np

    missing = [each for each in (bool, int, float, complex, object, str) if each.__name__ not in vars(np)]
    for each in missing:
        setattr(np, each.__name__, each)
    import mxnet  # noqa: F401

    for each in missing:
        delattr(np, each.__name__)


IMPORT = {"torch": import_torch, "mxnet": import_mxnet}


def end_without_freeing(modules: set[str]) -> None:
    """Lets the process end without freeing `modules` and what the libraries loaded so far hold.

    Freeing torch piece by piece takes half as long as importing it.  The rank's own modules, rabit's among
    them, and the libraries that it loads itself end as in any process, before those.
    """

    def keep() -> None:
        for_ever = [sys.modules.pop(name) for name in modules if name in sys.modules]
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(for_ever))

    atexit.register(keep)  # the first to register is the last to be called
    libc = ctypes.CDLL(None)
    libc.on_exit(libc._exit, None)  # likewise; it gets the status


def main() -> None:
    address, framework = sys.argv[1:]
    IMPORT[framework]()
    shared = {name for name in sys.modules if name.partition(".")[0] not in sys.stdlib_module_names}
    arguments = serve(address)
    end_without_freeing(shared)
    sys.argv = arguments
    sys.path[0] = str(Path(arguments[0]).parent)
    runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    main()
