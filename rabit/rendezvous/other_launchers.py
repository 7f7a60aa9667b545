"""Where the ranks of a job meet that a launcher has started which is not rabitrun.

On one host they find each other through a file, on several at a port that follows from the job.  Rank 0
serves the store.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping
from pathlib import Path

from rabit.config.config import SECRET_VALUE
from rabit.errors import InvalidArgument, TimedOut
from rabit.rendezvous import addresses, meeting_file
from rabit.rendezvous.boards import Found, board_of
from rabit.rendezvous.environments import JobMarks
from rabit.rendezvous.host_port import format_address, split_address
from rabit.rendezvous.offers import Board
from rabit.rendezvous.own_address import bind_address, reachable_address
from rabit.rendezvous.placement import SECRET_BYTES, Placement, given_secret

__all__ = ["find", "publish"]

_PAUSE_S = 0.5  # between questions to the resolver
# Below the range from which the kernel takes ports for outgoing connections.
_FIRST_PORT, _PORT_COUNT = 20_000, 10_000
# Any of them gives all ranks one secret.
_SECRETS = ("RABIT_SECRET_FILE", "RABIT_SECRET_FD", "RABIT_SECRET_KEY_FILE", SECRET_VALUE)


def find(base: Placement, marks: JobMarks, environ: Mapping[str, str], timeout: float) -> Placement:
    """`base` with where the job meets; see `discover`."""
    if marks.local_size == marks.size and not environ.get("RABIT_STORE_ADDRESS"):
        return _on_one_host(base, marks, environ, timeout)
    if not environ.get("RABIT_JOB_NAME"):
        environ = {**environ, "RABIT_JOB_NAME": f"{marks.launcher} {marks.job}"}
    return _on_several_hosts(base, marks, environ, timeout)


def publish(placement: Placement, port: int) -> Placement:
    """Tells the other ranks the port of the store that this process has started.

    Returns the placement with the address that peers use.  Until the process ends, `discover`
    gives the same secret and address again, with `serves_store` False.
    """
    host, _ = split_address(placement.store_address, "the store's address")
    served = placement._replace(store_address=format_address(host, port), serves_store=False)
    if placement.meeting_file:
        meeting = meeting_file.Meeting(served.store_address, served.secret or b"")
        meeting_file.write_meeting(Path(placement.meeting_file), meeting)
    if placement.board is not None:
        placement.board.put(Found(served.store_address, served.secret or b"").to_json())
        served = served._replace(board=None)
    _served[os.getpid()] = served
    return served


# What this process serves, or has learnt from a board.  By process id: a forked child serves nothing.
_served: dict[int, Placement] = {}


def _on_one_host(
    base: Placement, marks: JobMarks, environ: Mapping[str, str], timeout: float
) -> Placement:
    loopback = addresses.loopback_address()
    if base.rank == 0 and os.getpid() in _served:
        return _served[os.getpid()]
    path = meeting_file.meeting_path(f"{marks.launcher} {marks.job}")
    if base.rank == 0:
        path.unlink(missing_ok=True)
        return base._replace(
            store_address=format_address(loopback, 0),
            serves_store=True,
            secret=(
                given_secret(environ, 0)
                if environ.get("RABIT_SECRET_FILE")
                else os.urandom(SECRET_BYTES)
            ),
            bind_address=loopback,
            meeting_file=str(path),
        )
    meeting = meeting_file.wait_for(path, base.rank, marks.launcher, timeout)
    return base._replace(
        store_address=meeting.store_address,
        secret=meeting.secret,
        bind_address=loopback,
    )


def _on_several_hosts(
    base: Placement, marks: JobMarks, environ: Mapping[str, str], timeout: float
) -> Placement:
    if os.getpid() in _served:
        return _served[os.getpid()]
    if not any(environ.get(name) for name in _SECRETS):
        board = board_of(marks, environ, timeout)
        if board is not None:
            return _by_board(board, base, environ)
    given = environ.get("RABIT_STORE_ADDRESS", "")
    if given:
        host, port = split_address(given, "RABIT_STORE_ADDRESS")
    elif marks.first_host:
        host = marks.first_host
        port = _FIRST_PORT + _hash(f"{marks.launcher} {marks.job}") % _PORT_COUNT
    else:
        raise InvalidArgument(
            f"{marks.launcher} started {base.size} ranks, {base.local_size} of them on this "
            "host, but its variables do not tell the address of rank 0's host. Set "
            "RABIT_STORE_ADDRESS to host:port of rank 0 (any free port), or use rabitrun."
        )
    if not any(environ.get(name) for name in _SECRETS):
        raise InvalidArgument(
            f"{marks.launcher} started {base.size} ranks on several hosts, and there is no secret "
            "by which they can trust each other. Under torchrun, import rabit_torch before rabit.init(); "
            "under srun, add --mpi=pmi2. Else make one with 'python -m rabit.launch.secret FILE'"
            " in a directory that all hosts share, or copy it to every host (mode 0600), "
            "and set RABIT_SECRET_FILE to its path."
        )
    secret = given_secret(environ, base.rank)
    if marks.launcher == "Kubernetes":
        _wait_for_name(host, timeout)
    if not given and not addresses.resolves(host):
        raise InvalidArgument(
            f"{marks.launcher} says that rank 0 runs on {host!r}, a name that {os.uname().nodename} does not "
            "know. Set RABIT_STORE_ADDRESS to host:port of rank 0 (any free port), with a name or an "
            "address that every host knows."
        )
    if base.rank != 0:
        bind = bind_address(environ, host, port)
        return base._replace(
            store_address=format_address(host, port),
            secret=secret,
            bind_address=bind,
        )
    # Where the user says the loopback, all ranks are on this machine, perhaps as several hosts.
    bind = host if given and addresses.is_loopback(host) else _own_address(environ, host, port)
    return base._replace(
        store_address=format_address(bind, port),
        serves_store=True,
        secret=secret,
        bind_address=bind,
    )


def _wait_for_name(host: str, timeout: float) -> None:
    """Pods start minutes apart, and the name of one is known when it runs."""
    deadline = time.monotonic() + timeout
    while not addresses.resolves(host):
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimedOut(
                f"the name {host!r} of rank 0's pod has not become known within {timeout:g} s. Check the headless "
                "Service (publishNotReadyAddresses: true) and the subdomain of the pods, or set RABIT_CONNECT_TIMEOUT "
                "higher."
            )
        time.sleep(min(_PAUSE_S, left))


def _by_board(board: Board, base: Placement, environ: Mapping[str, str]) -> Placement:
    """Rank 0 chooses the address and the secret; the others learn both from the board."""
    if base.rank == 0:
        address = reachable_address(environ)
        return base._replace(
            store_address=format_address(address, 0),
            serves_store=True,
            secret=os.urandom(SECRET_BYTES),
            bind_address=address,
            board=board,
        )
    found = Found.from_json(board.take())
    host, port = split_address(found.store_address, "the store's address")
    placed = base._replace(
        store_address=found.store_address,
        secret=found.secret,
        bind_address=bind_address(environ, host, port),
    )
    _served[os.getpid()] = placed  # A board gives its text once.
    return placed


def _own_address(environ: Mapping[str, str], host: str, port: int) -> str:
    """The address on which rank 0 serves: the one that its peers know as `host`."""
    bind = bind_address(environ, host, port)
    return bind if not addresses.is_loopback(bind) else reachable_address(environ, host)


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
