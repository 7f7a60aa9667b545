"""Placement: which rank this process is, and where the job meets; read from the launcher's marks.

rabitrun, torchrun, Open MPI, MPICH, and Slurm's srun each leave variables in the environment of
the processes they start.  `discover` reads them; nothing else in the package knows a launcher.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import secrets
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rabit.config.config import Config
from rabit.errors import InvalidArgument
from rabit.rendezvous import addresses, environments, meeting_file
from rabit.rendezvous.environments import JobMarks

__all__ = [
    "Placement",
    "bind_address",
    "discover",
    "host_key",
    "publish",
    "reachable_address",
    "secret_from_file",
    "with_settings",
]

_SECRET_BYTES = 32
# Below the range from which the kernel takes ports for outgoing connections.
_FIRST_PORT, _PORT_COUNT = 20_000, 10_000


@dataclass(frozen=True)
class Placement:
    """Where this process stands.  `store_address` is "" for a job of one rank, which needs none.

    serves_store: this process starts the store, at `store_address` (port 0: any), keeps it until
    the process ends, and then calls `publish`.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    cross_rank: int = 0
    cross_size: int = 1
    host_key: str = ""
    store_address: str = ""
    serves_store: bool = False
    secret: bytes | None = dataclasses.field(default=None, repr=False)
    bind_address: str = ""
    launcher: str = "none"
    meeting_file: str = ""  # where `publish` writes for the ranks of one host; "" if it need not


# What a launcher says by a variable, and a user by a setting from any source.
_FROM_SETTINGS = ("host_key", "store_address", "secret_file", "bind_address", "network_interfaces")


def with_settings(environ: Mapping[str, str], config: Config) -> dict[str, str]:
    """`environ` as if what `config` says about places came from there: it wins where it says any."""
    variables = {each.name: each.variable for each in Config.settings()}
    told = {variables[name]: getattr(config, name) for name in _FROM_SETTINGS}
    return {**environ, **{variable: text for variable, text in told.items() if text}}


def discover(environ: Mapping[str, str], timeout: float = 60.0) -> Placement:
    """The placement that `environ` describes; size 1 when no launcher has left its marks.

    Waits up to `timeout` seconds for rank 0 where the ranks of one host have to find each other
    through a file.  Raises InvalidArgument when variables are missing or contradict each other,
    TimedOut when rank 0 does not come.
    """
    marks = environments.read_marks(environ)
    if marks is None:
        return Placement(host_key=host_key(environ))
    base = Placement(
        rank=marks.rank,
        size=marks.size,
        local_rank=marks.local_rank,
        local_size=marks.local_size,
        cross_rank=marks.cross_rank,
        cross_size=marks.cross_size,
        host_key=host_key(environ),
        launcher=marks.launcher,
    )
    is_elastic = marks.launcher == "rabitrun" and environ.get("RABIT_MAX_NP") is not None
    if marks.size == 1 and not is_elastic:
        return base
    if marks.launcher == "rabitrun":
        return _under_rabitrun(base, environ)
    if marks.local_size == marks.size and not environ.get("RABIT_STORE_ADDRESS"):
        return _on_one_host(base, marks, environ, timeout)
    return _on_several_hosts(base, marks, environ)


def publish(placement: Placement, port: int) -> Placement:
    """Tells the other ranks the port of the store that this process has started.

    Returns the placement with the address that peers use.  Until the process ends, `discover`
    gives the same secret and address again, with `serves_store` False.
    """
    host, _ = addresses.split_address(placement.store_address, "the store's address")
    served = dataclasses.replace(
        placement, store_address=addresses.format_address(host, port), serves_store=False
    )
    if placement.meeting_file:
        meeting = meeting_file.Meeting(served.store_address, served.secret or b"")
        meeting_file.write_meeting(Path(placement.meeting_file), meeting)
    _served[os.getpid()] = served
    return served


# What this process serves.  By process id: a forked child serves nothing.
_served: dict[int, Placement] = {}


def host_key(environ: Mapping[str, str]) -> str:
    """A text that is equal for processes that can share memory: boot and host name.

    Containers on one machine differ in their host name.  RABIT_HOST_KEY overrides it.
    """
    given = environ.get("RABIT_HOST_KEY")
    if given:
        return given
    boot = Path("/proc/sys/kernel/random/boot_id")
    boot_id = boot.read_text().strip() if boot.exists() else "unknown-boot"
    return f"{boot_id}:{os.uname().nodename}"


def _under_rabitrun(base: Placement, environ: Mapping[str, str]) -> Placement:
    store = environ.get("RABIT_STORE_ADDRESS", "")
    if not store:
        raise InvalidArgument(
            f"RABIT_SIZE is {base.size}, but RABIT_STORE_ADDRESS is not set: the ranks cannot "
            "find each other. Start the job with rabitrun, or set it to host:port."
        )
    host, port = addresses.split_address(store, "RABIT_STORE_ADDRESS")
    return dataclasses.replace(
        base,
        store_address=store,
        secret=_given_secret(environ, base.rank),
        bind_address=bind_address(environ, host, port),
    )


def _given_secret(environ: Mapping[str, str], rank: int) -> bytes:
    descriptor, path = environ.get("RABIT_SECRET_FD", ""), environ.get("RABIT_SECRET_FILE", "")
    if descriptor and descriptor != "-1":
        if not descriptor.isdigit():
            raise InvalidArgument(
                f"RABIT_SECRET_FD is {descriptor!r}: expected the number of an open descriptor."
            )
        return _decode_secret(_read_secret_descriptor(int(descriptor), rank), "RABIT_SECRET_FD")
    if path:
        return secret_from_file(path)
    raise InvalidArgument(
        f"rank {rank} has no secret: neither RABIT_SECRET_FD nor RABIT_SECRET_FILE is set, and "
        "ranks prove with it that they belong to the job. Start the job with rabitrun, or make "
        "a file with 'python -m rabit.launch.secret FILE', copy it to every host, and set "
        "RABIT_SECRET_FILE to its path."
    )


def secret_from_file(path: str) -> bytes:
    try:
        text = meeting_file.read_private_file(Path(path), "secret file")
    except FileNotFoundError as error:
        raise InvalidArgument(
            f"the secret file {path} (RABIT_SECRET_FILE) does not exist on "
            f"{os.uname().nodename}. Copy it to every host, with mode 0600."
        ) from error
    return _decode_secret(text, f"the secret file {path}")


def _read_secret_descriptor(descriptor: int, rank: int) -> str:
    try:
        kind = os.fstat(descriptor).st_mode
        os.set_inheritable(descriptor, False)
        if stat.S_ISREG(kind):
            return os.pread(descriptor, 4 * _SECRET_BYTES, 0).decode("ascii", "replace")
        if stat.S_ISFIFO(kind):
            return _drain_pipe(descriptor)
    except OSError as error:
        raise InvalidArgument(
            f"RABIT_SECRET_FD is {descriptor}, which is not open in this process (rank {rank}): "
            f"{error.strerror}. A program that a rank starts is no rank itself: remove the "
            "RABIT_ variables from its environment."
        ) from error
    raise InvalidArgument(
        f"RABIT_SECRET_FD is {descriptor}, which is neither a pipe nor a memory file. A program "
        "that a rank starts is no rank itself: remove the RABIT_ variables from its environment."
    )


@functools.cache
def _drain_pipe(descriptor: int) -> str:
    """A pipe gives its content once, and init() may come several times."""
    data = b""
    while len(data) < 2 * _SECRET_BYTES:
        more = os.read(descriptor, 2 * _SECRET_BYTES - len(data))
        if not more:
            break
        data += more
    return data.decode("ascii", "replace")


def _decode_secret(text: str, source: str) -> bytes:
    try:
        secret = bytes.fromhex(text.strip())
    except ValueError:
        secret = b""
    if len(secret) != _SECRET_BYTES:
        raise InvalidArgument(
            f"{source} does not hold a secret of {_SECRET_BYTES} bytes as "
            f"{2 * _SECRET_BYTES} hexadecimal digits (it has {len(text.strip())} characters). "
            "Make one with 'python -m rabit.launch.secret FILE'."
        )
    return secret


def bind_address(environ: Mapping[str, str], store_host: str, store_port: int) -> str:
    """The address on which this rank listens: as told, else of the route to the store."""
    given = environ.get("RABIT_BIND_ADDRESS", "").strip()
    if given:
        return given
    names = environ.get("RABIT_NETWORK_INTERFACES") or environ.get("HOROVOD_GLOO_IFACE") or ""
    interfaces = [each.strip() for each in names.split(",") if each.strip()]
    if interfaces and not addresses.is_loopback(store_host):
        return addresses.pick_address(interfaces)
    return addresses.route_address(store_host, store_port)


def _on_one_host(
    base: Placement, marks: JobMarks, environ: Mapping[str, str], timeout: float
) -> Placement:
    loopback = addresses.loopback_address()
    if base.rank == 0 and os.getpid() in _served:
        return _served[os.getpid()]
    path = meeting_file.meeting_path(f"{marks.launcher} {marks.job}")
    if base.rank == 0:
        path.unlink(missing_ok=True)
        return dataclasses.replace(
            base,
            store_address=addresses.format_address(loopback, 0),
            serves_store=True,
            secret=(
                _given_secret(environ, 0)
                if environ.get("RABIT_SECRET_FILE")
                else secrets.token_bytes(_SECRET_BYTES)
            ),
            bind_address=loopback,
            meeting_file=str(path),
        )
    meeting = meeting_file.wait_for(path, base.rank, marks.launcher, timeout)
    return dataclasses.replace(
        base,
        store_address=meeting.store_address,
        secret=meeting.secret,
        bind_address=loopback,
    )


def _on_several_hosts(base: Placement, marks: JobMarks, environ: Mapping[str, str]) -> Placement:
    if base.rank == 0 and os.getpid() in _served:
        return _served[os.getpid()]
    given = environ.get("RABIT_STORE_ADDRESS", "")
    if given:
        host, port = addresses.split_address(given, "RABIT_STORE_ADDRESS")
    elif marks.first_host:
        host = marks.first_host
        port = _FIRST_PORT + _hash(f"{marks.launcher} {marks.job}") % _PORT_COUNT
    else:
        raise InvalidArgument(
            f"{marks.launcher} started {base.size} ranks, {base.local_size} of them on this "
            "host, but its variables do not tell the address of rank 0's host. Set "
            "RABIT_STORE_ADDRESS to host:port of rank 0 (any free port), or use rabitrun."
        )
    if not environ.get("RABIT_SECRET_FILE") and not environ.get("RABIT_SECRET_FD"):
        raise InvalidArgument(
            f"{marks.launcher} started {base.size} ranks on several hosts, and there is no secret "
            "by which they can trust each other. Make one with 'python -m rabit.launch.secret "
            "FILE' in a directory that all hosts share, or copy it to every host (mode 0600), "
            "and set RABIT_SECRET_FILE to its path."
        )
    secret = _given_secret(environ, base.rank)
    if not given and not addresses.resolves(host):
        raise InvalidArgument(
            f"{marks.launcher} says that rank 0 runs on {host!r}, a name that {os.uname().nodename} does not "
            "know. Set RABIT_STORE_ADDRESS to host:port of rank 0 (any free port), with a name or an "
            "address that every host knows."
        )
    if base.rank != 0:
        bind = bind_address(environ, host, port)
        return dataclasses.replace(
            base,
            store_address=addresses.format_address(host, port),
            secret=secret,
            bind_address=bind,
        )
    bind = _own_address(environ, host, port)
    return dataclasses.replace(
        base,
        store_address=addresses.format_address(bind, port),
        serves_store=True,
        secret=secret,
        bind_address=bind,
    )


def _own_address(environ: Mapping[str, str], host: str, port: int) -> str:
    """The address on which rank 0 serves: the one that its peers know as `host`."""
    bind = bind_address(environ, host, port)
    return bind if not addresses.is_loopback(bind) else reachable_address(environ, host)


def reachable_address(environ: Mapping[str, str], host: str = "", towards: str = "") -> str:
    """An address of this host at which other hosts arrive.

    host: how they know it, for messages.  towards: an address that all of them reach, if one is
    known: its network counts where none is given.
    """
    given = environ.get("RABIT_BIND_ADDRESS", "").strip()
    if given:
        return given
    names = environ.get("RABIT_NETWORK_INTERFACES") or environ.get("HOROVOD_GLOO_IFACE") or ""
    interfaces = [each.strip() for each in names.split(",") if each.strip()]
    if interfaces:
        return addresses.pick_address(interfaces)
    # Debian maps a host's own name to 127.0.1.1, where no other host arrives; a route does.
    for probe in (*([towards] if towards else []), "192.0.2.1", "2001:db8::1"):
        try:
            found = addresses.route_address(probe)
        except InvalidArgument:
            continue
        if not addresses.is_loopback(found):
            return found
    raise InvalidArgument(
        f"rank 0's host {host or os.uname().nodename!r} has a loopback address here, and there is "
        "no default route. Set RABIT_NETWORK_INTERFACES or RABIT_BIND_ADDRESS on every host."
    )


def _hash(text: str) -> int:
    import hashlib

    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
