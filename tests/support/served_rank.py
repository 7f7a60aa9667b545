"""Stands where the launcher starts a rank, and has the rank forked by a RankServer.

    python served_rank.py SOCKET SCRIPT [ARGUMENT…]

The rank gets this process's arguments, environment, folder, processors and open files.  Signals
are passed on to it; this process ends as the rank ends, and the rank ends with this process.
"""
# ruff: noqa: PTH110, PTH208, PTH109
# Hundreds of these start, and importing pathlib takes as long as the rest.

import json
import os
import signal
import socket
import struct
import sys

PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)


def open_files() -> list[int]:
    """The standard streams, and what the launcher hands over, such as the job's secret."""
    numbers = [int(name) for name in os.listdir("/proc/self/fd")]
    return [number for number in numbers if os.path.exists(f"/proc/self/fd/{number}")]


def main() -> None:
    server, *arguments = sys.argv[1:]
    files = open_files()
    signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)  # until there is a rank to pass them to
    link = socket.socket(socket.AF_UNIX)
    link.connect(server)
    order = json.dumps(
        {
            "arguments": arguments,
            "environment": dict(os.environ),
            "folder": os.getcwd(),
            "processors": sorted(os.sched_getaffinity(0)),
            "files": files,
        }
    ).encode()
    socket.send_fds(link, [struct.pack("!I", len(order))], files)
    link.sendall(order)
    answers = link.makefile("rb")
    rank = int(answers.readline())
    for number in PASSED_ON:
        signal.signal(number, lambda number, _frame: os.kill(rank, number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
    status = int(answers.readline())
    if os.WIFSIGNALED(status):
        end = os.WTERMSIG(status)
        if end != signal.SIGKILL:  # which nothing can stand in the way of
            signal.signal(end, signal.SIG_DFL)
        os.kill(os.getpid(), end)
    os._exit(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
