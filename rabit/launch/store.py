"""The rendezvous store, served by the launcher through the native library, or by several processes."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence

from rabit.errors import InvalidArgument, ResourceExhausted, TimedOut
from rabit.launch.hosts import Host
from rabit.launch.nodes.frames import GREETING
from rabit.launch.nodes.way import Way
from rabit.rendezvous.host_port import format_address

__all__ = ["StorePlace", "crowded", "serve_store", "serve_stores", "store_places"]

_MODULE = "rabit.launch.nodes.store_process"
_READ_BYTES = 1 << 16
_LONGEST_NOISE_BYTES = 1 << 16
_FAREWELL_S = 2.0
# Agents say every few seconds that they keep ranks.
_IDLE_S = 60.0


@contextlib.contextmanager
def serve_store(address: str, secret: bytes) -> Iterator[str]:
    """Serves the store on `address`, at a port the system chooses; gives "host:port".

    The store runs in a native thread until the block ends.  Raises RabitError when the native
    library is missing or the address is not of this host.
    """
    # Jobs of one process and of other launchers need no store, and no native library here.
    from rabit.rendezvous.discovery import StoreServer

    with contextlib.closing(StoreServer(address, 0, secret)) as store:
        yield format_address(address, store.port)


class StorePlace:
    """Where one of several stores runs; `command` starts it.  by_hand: see Node; missing: see Way."""

    def __init__(
        self,
        host: Host,
        command: Sequence[str],
        environ: Mapping[str, str] | None,
        by_hand: str = "",
        missing: str = "",
    ) -> None:
        self.host = host
        self.command = list(command)
        self.environ = environ
        self.by_hand = by_hand
        self.missing = missing


def store_places(
    count: int,
    hosts: Sequence[tuple[Host, bool]],
    way: Way,
    environ: Mapping[str, str],
) -> list[StorePlace]:
    """Where `count` stores run: on this machine and then on the others, in turn.

    hosts: of the job, and whether ranks there are started without ssh.
    """
    others = [each for each, is_here in hosts if not is_here]
    mine = next((each for each, is_here in hosts if is_here), Host("localhost", 1))
    every = [mine, *others] if any(is_here for _, is_here in hosts) or len(others) < count else others
    python_path = environ.get("PYTHONPATH", "")
    places = []
    for index in range(count):
        host = every[index % len(every)]
        if host in others:
            command = way.command(host, python_path, _MODULE)
            places.append(StorePlace(host, command, None, way.by_hand(host), way.missing()))
        else:
            places.append(StorePlace(host, [sys.executable, "-m", _MODULE], environ))
    return places


def crowded(places: Sequence[StorePlace]) -> str:
    """Which host the job would not survive the loss of, as it has too many of the stores; "": none."""
    names = [str(place.host) for place in places]
    worst = max(names, key=names.count)
    count = names.count(worst)
    if len(names) - count > len(names) // 2:
        return ""
    return (
        f"{count} of the {len(names)} stores are on {worst}: the job survives the loss of this process, and not "
        f"of that host. List {len(names)} hosts."
    )


@contextlib.contextmanager
def serve_stores(
    places: Sequence[StorePlace],
    address: str,
    interfaces: str,
    secret: bytes,
    limit_s: float,
) -> Iterator[list[str]]:
    """Serves one store at each place; gives their addresses.  They continue if this process dies.

    address: where others reach this machine.  interfaces: names by which a host chooses its own
    address, if there are any.  Raises InvalidArgument or TimedOut if one has not started after `limit_s` seconds.
    """
    told = {
        "secret": secret.hex(), "host": address, "interfaces": interfaces,
        "idle_s": _IDLE_S + limit_s,
    }  # fmt: skip
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for each in places:
            processes.append(_start(each))
        for process in processes:
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # What it has said tells why.
                process.stdin.write(json.dumps(told).encode() + b"\n")
        deadline = time.monotonic() + limit_s
        yield [
            _address_of(place, process, deadline)
            for place, process in zip(places, processes, strict=True)
        ]
    finally:
        for process in processes:
            _dismiss(process)
        deadline = time.monotonic() + _FAREWELL_S
        for process in processes:
            _end(process, deadline)


def _start(place: StorePlace) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            place.command,
            env=None if place.environ is None else dict(place.environ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,  # It is to outlive this process.
        )
    except FileNotFoundError as error:
        raise InvalidArgument(f"the store on {place.host} cannot be started: {place.missing or error}") from error
    except OSError as error:
        raise ResourceExhausted(
            f"the store on {place.host} cannot be started: {error.strerror}. Check the limits of the user "
            "('ulimit -a')."
        ) from error


def _address_of(place: StorePlace, process: subprocess.Popen[bytes], deadline: float) -> str:
    """What the process says, which may come after what a login script says."""
    assert process.stdout is not None and process.stderr is not None
    said, complaints = bytearray(), bytearray()
    until = deadline
    with selectors.DefaultSelector() as waiting:
        waiting.register(process.stdout, selectors.EVENT_READ, said)
        waiting.register(process.stderr, selectors.EVENT_READ, complaints)
        while waiting.get_map():
            ready = waiting.select(max(0.0, until - time.monotonic()))
            if not ready:
                break
            for key, _ in ready:
                data = os.read(key.fd, _READ_BYTES)
                key.data.extend(data)
                del key.data[:-_LONGEST_NOISE_BYTES]
                if not data:
                    waiting.unregister(key.fileobj)
                    # Another process, such as ssh's master of connections, may hold the other stream open.
                    until = min(until, time.monotonic() + _FAREWELL_S)
            _, greeting, rest = said.partition(GREETING)
            line, end, _ = rest.partition(b"\n")
            if greeting and end:
                return line.decode()
    if until == deadline and time.monotonic() >= deadline:
        attempt = f"Try '{place.by_hand}' by hand, or set" if place.by_hand else "Set"
        raise TimedOut(
            f"the store on {place.host} has not started in time. {attempt} --start-timeout higher."
        )
    shown = " / ".join(complaints.decode("utf-8", "replace").strip().splitlines()[-3:]) or "nothing"
    raise InvalidArgument(
        f"the store on {place.host} cannot be started: it said {shown}. "
        "Ranks are started the same way: try the job without --store-replicas."
    )


def _dismiss(process: subprocess.Popen[bytes]) -> None:
    """Says that the job is over."""
    assert process.stdin is not None
    with contextlib.suppress(OSError):
        process.stdin.write(b"done\n")
    with contextlib.suppress(OSError):
        process.stdin.close()


def _end(process: subprocess.Popen[bytes], deadline: float) -> None:
    assert process.stdout is not None and process.stderr is not None
    try:
        process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    process.stdout.close()
    process.stderr.close()
