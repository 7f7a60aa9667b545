"""Hosts and their slots, from -H or a host file."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from rabit.errors import InvalidArgument

__all__ = ["Host", "decoded_hosts", "local_hosts", "parse_host_lines", "parse_hostfile", "parse_hosts"]

_MOST_SLOTS = 4096
# No leading dash, which ssh would take for an option, and nothing that a shell interprets.
_NAME = re.compile(
    r"^(?:[A-Za-z0-9_][A-Za-z0-9_.-]*@)?[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?$"
)
_WITH_SLOTS = re.compile(r"^(?P<name>\[[^\]]*\]|[^:\[\]]+)(?::(?P<slots>[^:]*))?$")


@dataclass(frozen=True)
class Host:
    """`name` as the user wrote it, without brackets; at most `slots` ranks run there.

    What rabit.launch.resolution adds: is_here, whether it is this machine; address, the first of the
    name, "" without one; problem, why there is none.
    """

    name: str
    slots: int
    is_here: bool = False
    address: str = ""
    problem: str = field(default="", compare=False)

    def __str__(self) -> str:
        return f"[{self.name}]" if ":" in self.name else self.name


def parse_hosts(text: str, source: str = "-H") -> list[Host]:
    """Hosts of "host1:2,host2,[fe80::2]:4"; a host without a number has one slot."""
    parts = [part.strip() for part in text.split(",")]
    if not parts[-1]:  # As lists end that a program has written.
        parts.pop()
    if not any(parts):
        raise InvalidArgument(
            f"{source} names no host: expected host:slots,…, such as {source} node1:2,node2:2."
        )
    return _checked((_host(part, source) for part in parts), source)


def _host(text: str, source: str) -> Host:
    match = _WITH_SLOTS.match(text)
    if match is None:
        raise InvalidArgument(
            f"{source}: {text!r} is not a host: expected host or host:slots. An IPv6 address needs "
            "brackets, such as [2001:db8::2]:4."
        )
    slots = match["slots"]
    return Host(_name(match["name"], source), 1 if slots is None else _slots(slots, text, source))


def _name(text: str, source: str) -> str:
    if text.startswith("["):
        address = text[1:-1]
        try:
            ipaddress.IPv6Address(address)
        except ValueError as error:
            raise InvalidArgument(
                f"{source}: {text!r} is not an IPv6 address: {error}. Correct it."
            ) from error
        return address
    if not _NAME.fullmatch(text) or len(text) > 255:
        raise InvalidArgument(
            f"{source}: {text!r} is not a host name: letters, digits, dots, dashes and underscores "
            "are allowed, and user@ before them. Correct it."
        )
    return text


def _slots(text: str, where: str, source: str) -> int:
    if not (text.isascii() and text.isdigit()) or not 1 <= int(text[:9]) <= _MOST_SLOTS:
        raise InvalidArgument(
            f"{source}: {where!r} has {text!r} slots: expected a number between 1 and "
            f"{_MOST_SLOTS}. Leave a host out to run nothing there."
        )
    return int(text)


def parse_hostfile(path: Path) -> list[Host]:
    """Hosts of a file, one in each line; blank lines and text after # are skipped.

    "name slots=2" (Open MPI, Horovod), "name:2" (MPICH) and "name" (one slot) are understood.  A name
    alone may come again, for one more slot each time, as in the files of PBS and LSF.
    """
    source = f"--hostfile {path}"
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InvalidArgument(
            f"the host file {path} cannot be read: {error}. Correct --hostfile."
        ) from error
    return parse_host_lines(decoded_hosts(data, source), source)


def decoded_hosts(data: bytes | bytearray, source: str) -> str:
    """The text of `data`, which is UTF-8, perhaps with the mark that editors of Windows put before it."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidArgument(
            f"{source}: byte {error.start} is {data[error.start]:#04x}, and names of hosts are UTF-8. Correct it."
        ) from error


def parse_host_lines(text: str, source: str) -> list[Host]:
    """The hosts of a text with one in each line, as `parse_hostfile` has them."""
    hosts: list[Host] = []
    place_of: dict[str, int] = {}  # of hosts that have come as a name alone
    for number, line in enumerate(text.splitlines(), 1):
        fields = line.partition("#")[0].split()
        if not fields:
            continue
        host = _line(fields, f"{source}, line {number}")
        if fields != [host.name]:
            hosts.append(host)
        elif host.name in place_of:
            place = place_of[host.name]
            hosts[place] = Host(host.name, hosts[place].slots + 1)
        else:
            place_of[host.name] = len(hosts)
            hosts.append(host)
    if not hosts:
        raise InvalidArgument(
            f"{source} names no host: expected one in each line, such as 'node1 slots=2'."
        )
    return _checked(hosts, source)


def _line(fields: list[str], source: str) -> Host:
    host = _host(fields[0], source)
    for word in fields[1:]:
        key, separator, value = word.partition("=")
        if separator and key in ("slots", "max_slots", "max-slots"):
            if key == "slots":
                host = Host(host.name, _slots(value, " ".join(fields), source))
            continue
        raise InvalidArgument(
            f"{source}: {word!r} is unknown: expected 'host slots=N' or 'host:N'. Remove it."
        )
    return host


def _checked(hosts: Iterable[Host], source: str) -> list[Host]:
    found: dict[str, Host] = {}
    for host in hosts:
        if host.name in found:
            raise InvalidArgument(
                f"{source} names the host {host.name!r} twice. Give it once, with all its slots: "
                f"{host}:{host.slots + found[host.name].slots}."
            )
        found[host.name] = host
    return list(found.values())


def local_hosts(slots: int) -> list[Host]:
    """This host, under the name localhost."""
    return [Host("localhost", slots, is_here=True)]
