"""A store in a process of its own, of a job whose launcher may die: `rabitrun --store-replicas`.

rabitrun starts it, by ssh on other hosts.  What it has to know, with the secret, comes as one line over
standard input, and its address goes back over standard output.  It ends when "done" comes, when the job
is over, and when nobody has kept ranks of the job for a while.
"""

from __future__ import annotations

import contextlib
import functools
import json
import signal
import sys
import time

from rabit.errors import RabitError, TimedOut
from rabit.launch.nodes.frames import GREETING
from rabit.launch.nodes.keeper import KEPT, OVER
from rabit.rendezvous.discovery import StoreServer
from rabit.rendezvous.host_port import format_address
from rabit.rendezvous.own_address import bind_address
from rabit.rendezvous.replica import MARK
from rabit.rendezvous.store_client import StoreClient
from rabit.threads import start_thread

__all__ = ["main"]

_LOOK_S = 5.0


def main() -> int:
    line = sys.stdin.buffer.readline()
    try:
        told = json.loads(line)
        secret, host, idle_s = bytes.fromhex(told["secret"]), str(told["host"]), float(told["idle_s"])
        environ = {"RABIT_NETWORK_INTERFACES": str(told["interfaces"])}
    except (ValueError, KeyError, TypeError) as error:
        print(f"rabit store: what it is to do is malformed: {type(error).__name__}", file=sys.stderr)
        return 1
    # Only the launcher, and the end of the job, end it: a terminal that closes does not.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        own = bind_address(environ, host, 9)
        with contextlib.closing(StoreServer(own, 0, secret)) as server:
            address = format_address(own, server.port)
            with contextlib.closing(StoreClient(address, secret)) as client:
                client.set(MARK, b"")
                sys.stdout.buffer.write(GREETING + address.encode() + b"\n")
                sys.stdout.buffer.flush()
                start_thread(functools.partial(_wait_for_done, client), "wait-for-done")
                _serve(client, idle_s)
    except RabitError as error:
        print(f"rabit store: {error}", file=sys.stderr)
        return 1
    return 0


def _wait_for_done(client: StoreClient) -> None:
    """The end of the input says nothing: the launcher, or the way to it, may be lost."""
    for line in sys.stdin.buffer:
        if line.strip() == b"done":
            with contextlib.suppress(RabitError):  # Then it has ended already.
                client.set(OVER, b"")


def _serve(client: StoreClient, idle_s: float) -> None:
    """Returns when the job is over, or nobody has kept ranks for `idle_s` seconds."""
    kept: bytes | None = None
    kept_at = time.monotonic()
    while time.monotonic() - kept_at < idle_s:
        with contextlib.suppress(TimedOut):
            client.get(OVER, min(_LOOK_S, idle_s))
            return
        now = client.told(KEPT)
        if now != kept:
            kept, kept_at = now, time.monotonic()


if __name__ == "__main__":
    sys.exit(main())
