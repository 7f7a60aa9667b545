"""Addresses of this host: of an interface, of the route to another host, of the loopback."""

from __future__ import annotations

import ctypes
import ipaddress
import os
import socket
from collections.abc import Sequence

from rabit.errors import InvalidArgument

__all__ = [
    "format_address",
    "interface_addresses",
    "is_loopback",
    "is_own_address",
    "loopback_address",
    "pick_address",
    "resolves",
    "route_address",
    "split_address",
]

_IFF_UP = 1
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def split_address(text: str, source: str) -> tuple[str, int]:
    """Host and port of "host:port" or "[v6]:port".  `source` names the setting in errors."""
    host, separator, port = text.rpartition(":")
    is_bracketed = host.startswith("[") and host.endswith("]")
    if is_bracketed:
        host = host[1:-1]
    is_well_formed = separator and host and port.isascii() and port.isdigit()
    if not is_well_formed or int(port) > 65535 or (":" in host and not is_bracketed):
        raise InvalidArgument(
            f"{source} is {text!r}, which is no address: expected host:port or [v6]:port, "
            "such as 10.0.0.1:29400. Correct it."
        )
    return host, int(port)


def format_address(host: str, port: int) -> str:
    """The text "host:port"; an IPv6 host gets brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """True for an address, not a name, of the loopback."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def loopback_address() -> str:
    """127.0.0.1, or ::1 on a host that has no IPv4 at all.  Never asks the network.

    Raises InvalidArgument where neither is reached, as in a network namespace whose lo is down: a
    socket can be bound to 127.0.0.1 there all the same.
    """
    reason: OSError | None = None
    for host, family in (("127.0.0.1", socket.AF_INET), ("::1", socket.AF_INET6)):
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.bind((host, 0))
                probe.connect((host, 9))  # Sends nothing: the kernel looks for a route.
                return host
        except OSError as error:
            reason = reason or error
    raise InvalidArgument(
        f"the loopback interface of {socket.gethostname()} cannot be used: 127.0.0.1 is not reached "
        f"({reason}), and ranks of one host meet there. Start it with 'ip link set lo up', which in a "
        "container or network namespace its own root does."
    )


def is_own_address(host: str) -> bool:
    """True if a socket can be bound to the address `host` here.  Never asks the network."""
    try:
        family = socket.AF_INET6 if ipaddress.ip_address(host).version == 6 else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((host, 0))
    except (ValueError, OSError):
        return False
    return True


def resolves(host: str) -> bool:
    """True if this machine knows an address of `host`.  May ask the network."""
    try:
        socket.getaddrinfo(host, None, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):
        return False
    return True


def route_address(host: str, port: int = 9) -> str:
    """The address of this host from which packets to `host` leave.  Sends nothing.

    Raises InvalidArgument when `host` does not resolve or there is no route to it.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError) as error:
        raise InvalidArgument(
            f"the host {host!r} does not resolve: {error}. Use a name that every host knows, "
            "or an address."
        ) from error
    reason: OSError | None = None
    for family, kind, protocol, _, address in found:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.connect(address)
                return str(probe.getsockname()[0])
        except OSError as error:
            reason = error
    raise InvalidArgument(
        f"there is no route to {host!r}: {reason}. Choose an interface with "
        "RABIT_NETWORK_INTERFACES, or an address with RABIT_BIND_ADDRESS."
    )


def interface_addresses(name: str) -> list[str]:
    """Addresses of the interface `name`, IPv4 first; without link-local IPv6 ones.

    Raises InvalidArgument when the interface is unknown, down or has no address.
    """
    known = sorted(each for _, each in socket.if_nameindex())
    if name not in known:
        raise InvalidArgument(
            f"the network interface {name!r} does not exist on {socket.gethostname()}: "
            f"known are {', '.join(known)}. Correct --network-interfaces or "
            "RABIT_NETWORK_INTERFACES."
        )
    is_up, found = _state_of(name)
    if not is_up:
        raise InvalidArgument(
            f"the network interface {name!r} is down on {socket.gethostname()}. "
            f"Start it ('ip link set {name} up') or choose another."
        )
    if not found:
        raise InvalidArgument(
            f"the network interface {name!r} has no address on {socket.gethostname()}. "
            "Give it one or choose another."
        )
    return found


class _InterfaceAddress(ctypes.Structure):
    """struct ifaddrs of the C library."""


_InterfaceAddress._fields_ = (
    ("next", ctypes.POINTER(_InterfaceAddress)),
    ("name", ctypes.c_char_p),
    ("flags", ctypes.c_uint),
    ("address", ctypes.c_void_p),
    *((each, ctypes.c_void_p) for each in ("netmask", "destination", "data")),
)


def _state_of(name: str) -> tuple[bool, list[str]]:
    """Whether the interface is up, and its addresses as `interface_addresses` orders them."""
    library = ctypes.CDLL(None, use_errno=True)
    first = ctypes.POINTER(_InterfaceAddress)()
    if library.getifaddrs(ctypes.byref(first)):
        code = ctypes.get_errno()
        raise OSError(code, f"getifaddrs: {os.strerror(code)}")
    is_up = False
    by_family: dict[int, list[str]] = {socket.AF_INET: [], socket.AF_INET6: []}
    try:
        each = first
        while each:
            entry = each.contents
            each = entry.next
            # An IPv4 address may have a label in place of the interface's name: eth0:1.
            if entry.name.partition(b":")[0] != os.fsencode(name):
                continue
            is_up = is_up or bool(entry.flags & _IFF_UP)
            family, address = _read_address(entry.address)
            if address is not None and not (address.version == 6 and address.is_link_local):
                by_family[family].append(str(address))
    finally:
        library.freeifaddrs(first)
    return is_up, by_family[socket.AF_INET] + by_family[socket.AF_INET6]


def _read_address(pointer: int | None) -> tuple[int, _Address | None]:
    """The family and address of a struct sockaddr; None: of another family than IP."""
    if not pointer:
        return 0, None
    family = ctypes.c_uint16.from_address(pointer).value
    if family == socket.AF_INET:
        return family, ipaddress.IPv4Address(ctypes.string_at(pointer + 4, 4))
    if family == socket.AF_INET6:
        return family, ipaddress.IPv6Address(ctypes.string_at(pointer + 8, 16))
    return family, None


def pick_address(interfaces: Sequence[str]) -> str:
    """The first address of the first interface of `interfaces` that exists here and is up.

    Hosts name their interfaces differently, so a list may hold names that others have.
    """
    known = {each for _, each in socket.if_nameindex()}
    for name in interfaces:
        if name in known:
            return interface_addresses(name)[0]
    return interface_addresses(interfaces[0])[0]
