"""Placement: which rank this process is, and where the job meets; as rabitrun says it."""

from __future__ import annotations

import functools
import os
import stat
from collections.abc import Mapping
from typing import Any, NamedTuple

from rabit.config.config import SECRET_VALUE, Config
from rabit.errors import InvalidArgument
from rabit.rendezvous.host_port import split_address
from rabit.rendezvous.private_file import read_private_file

__all__ = [
    "SECRET_BYTES",
    "Placement",
    "given_secret",
    "host_key",
    "secret_from_file",
    "under_rabitrun",
    "with_settings",
]

SECRET_BYTES = 32


class Placement(NamedTuple):
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
    secret: bytes | None = None
    bind_address: str = ""
    launcher: str = "none"
    board: Any = None  # where `publish` leaves both for other hosts; see rabit.rendezvous.boards
    meeting_file: str = ""  # where `publish` writes for the ranks of one host; "" if it need not

    def __repr__(self) -> str:
        pairs = (f"{name}={value!r}" for name, value in self._asdict().items() if name != "secret")
        return f"Placement({', '.join(pairs)})"


# What a launcher says by a variable, and a user by a setting from any source.
_FROM_SETTINGS = (
    "host_key", "store_address", "secret_file", "secret_key_file", "job_name", "bind_address",
    "network_interfaces", "interfaces",
)  # fmt: skip


def with_settings(environ: Mapping[str, str], config: Config) -> dict[str, str]:
    """`environ` as if what `config` says about places came from there: it wins where it says any."""
    variables = {setting.name: setting.variable for setting in Config.settings()}
    told = {variables[name]: getattr(config, name) for name in _FROM_SETTINGS}
    return {**environ, **{variable: text for variable, text in told.items() if text}}


def host_key(environ: Mapping[str, str]) -> str:
    """A text that is equal for processes that can share memory: boot and host name.

    Containers on one machine differ in their host name.  RABIT_HOST_KEY overrides it.
    """
    given = environ.get("RABIT_HOST_KEY")
    if given:
        return given
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot_id = file.read().strip()
    except FileNotFoundError:
        boot_id = "unknown-boot"
    return f"{boot_id}:{os.uname().nodename}"


def under_rabitrun(base: Placement, environ: Mapping[str, str]) -> Placement:
    """`base` with where the job meets; see `discover`."""
    store = environ.get("RABIT_STORE_ADDRESS", "")
    if not store:
        raise InvalidArgument(
            f"RABIT_SIZE is {base.size}, but RABIT_STORE_ADDRESS is not set: the ranks cannot "
            "find each other. Start the job with rabitrun, or set it to host:port."
        )
    host, port = split_address(store, "RABIT_STORE_ADDRESS")
    return base._replace(
        store_address=store,
        secret=given_secret(environ, base.rank),
        bind_address=_bind_address(environ, host, port),
    )


def _bind_address(environ: Mapping[str, str], store_host: str, store_port: int) -> str:
    given = environ.get("RABIT_BIND_ADDRESS", "").strip()
    if given:  # As rabitrun does on one host, whose ranks load nothing that asks the network.
        return given
    from rabit.rendezvous.own_address import bind_address

    return bind_address(environ, store_host, store_port)


def given_secret(environ: Mapping[str, str], rank: int) -> bytes:
    """The secret of the job, from where the environment says."""
    descriptor, path = environ.get("RABIT_SECRET_FD", ""), environ.get("RABIT_SECRET_FILE", "")
    if descriptor and descriptor != "-1":
        if not descriptor.isdigit():
            raise InvalidArgument(
                f"RABIT_SECRET_FD is {descriptor!r}: expected the number of an open descriptor."
            )
        return _decode_secret(_read_secret_descriptor(int(descriptor), rank), "RABIT_SECRET_FD")
    if path:
        return secret_from_file(path)
    if value := environ.get(SECRET_VALUE):
        return _decode_secret(value, SECRET_VALUE)
    if key := environ.get("RABIT_SECRET_KEY_FILE", ""):
        from rabit.rendezvous.derived_secret import derived_secret

        return derived_secret(key, environ.get("RABIT_JOB_NAME", ""))
    raise InvalidArgument(
        f"rank {rank} has no secret: neither RABIT_SECRET_FD nor RABIT_SECRET_FILE is set, and "
        "ranks prove with it that they belong to the job. Start the job with rabitrun, or make "
        "a file with 'python -m rabit.launch.secret FILE', copy it to every host, and set "
        "RABIT_SECRET_FILE to its path."
    )


def secret_from_file(path: str) -> bytes:
    try:
        text = read_private_file(path, "secret file")
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
            return os.pread(descriptor, 4 * SECRET_BYTES, 0).decode("ascii", "replace")
        if stat.S_ISFIFO(kind):
            return _drain_pipe(descriptor)
    except OSError as error:
        raise InvalidArgument(
            f"RABIT_SECRET_FD is {descriptor}, which is not open in this process (rank {rank}): "
            f"{error.strerror}. A program that a rank starts is not a rank itself: remove the "
            "RABIT_ variables from its environment."
        ) from error
    raise InvalidArgument(
        f"RABIT_SECRET_FD is {descriptor}, which is neither a pipe nor a memory file. A program "
        "that a rank starts is not a rank itself: remove the RABIT_ variables from its environment."
    )


@functools.cache
def _drain_pipe(descriptor: int) -> str:
    """A pipe gives its content once, and init() may come several times."""
    data = b""
    while len(data) < 2 * SECRET_BYTES:
        more = os.read(descriptor, 2 * SECRET_BYTES - len(data))
        if not more:
            break
        data += more
    return data.decode("ascii", "replace")


def _decode_secret(text: str, source: str) -> bytes:
    try:
        secret = bytes.fromhex(text.strip())
    except ValueError:
        secret = b""
    if len(secret) != SECRET_BYTES:
        raise InvalidArgument(
            f"{source} does not hold a secret of {SECRET_BYTES} bytes as "
            f"{2 * SECRET_BYTES} hexadecimal digits (it has {len(text.strip())} characters). "
            "Make one with 'python -m rabit.launch.secret FILE'."
        )
    return secret
