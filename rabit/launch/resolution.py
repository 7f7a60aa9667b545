"""Where hosts are: each name is looked up once, in threads, and with a deadline."""

from __future__ import annotations

import dataclasses
import queue
import socket
import time
from collections.abc import Sequence

from rabit.launch.hosts import Host
from rabit.rendezvous.addresses import is_own_address
from rabit.threads import start_thread

__all__ = ["resolved"]

_LIMIT_S = 10.0
# A resolver whose servers are silent keeps a thread for half a minute.
_THREADS_MAX = 16


def resolved(
    hosts: Sequence[Host], known: Sequence[Host] = (), limit_s: float = _LIMIT_S
) -> list[Host]:
    """`hosts` with where they are, as far as the resolver says within `limit_s` seconds.  Blocks.

    known: hosts as this function has returned them, whose addresses hold on.
    """
    found = {host.name: host for host in known if host.is_here or host.address}
    missing = list(dict.fromkeys(host.name for host in hosts if host.name not in found))
    found |= {host.name: host for host in _look_up(missing, limit_s)}
    return [dataclasses.replace(found[host.name], slots=host.slots) for host in hosts]


def _look_up(names: Sequence[str], limit_s: float) -> list[Host]:
    wanted: queue.SimpleQueue[str] = queue.SimpleQueue()
    answers: queue.SimpleQueue[Host] = queue.SimpleQueue()
    found: dict[str, Host] = {}
    for name in names:
        if _machine(name) in ("localhost", socket.gethostname()):
            found[name] = Host(name, 1, is_here=True)
        else:
            wanted.put(name)

    def work() -> None:
        while True:
            try:
                name = wanted.get_nowait()
            except queue.Empty:
                return
            answers.put(_resolve(name))

    for number in range(min(_THREADS_MAX, wanted.qsize())):
        # Nobody can end a look-up: a thread that is still in one does not keep the process.
        start_thread(work, f"resolver-{number}")
    deadline = time.monotonic() + limit_s
    while len(found) < len(names):
        try:
            host = answers.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            break
        found[host.name] = host
    while not wanted.empty():  # The threads are to begin no further ones.
        try:
            wanted.get_nowait()
        except queue.Empty:
            break
    silence = f"the resolver has not answered within {limit_s:g} s"
    return [found.get(name) or Host(name, 1, problem=silence) for name in names]


def _resolve(name: str) -> Host:
    try:
        answers = socket.getaddrinfo(_machine(name), None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        return Host(name, 1, problem=str(error))
    addresses = [str(address[0]) for *_, address in answers]
    return Host(name, 1, is_here=any(map(is_own_address, addresses)), address=addresses[0])


def _machine(name: str) -> str:
    """Of "user@machine" what the resolver knows."""
    return name.rpartition("@")[2]
