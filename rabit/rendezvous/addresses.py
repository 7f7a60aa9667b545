"""Addresses of this host: of the route to another host, of the loopback."""

from __future__ import annotations

import ipaddress
import socket

from rabit.errors import InvalidArgument

__all__ = [
    "is_loopback",
    "is_own_address",
    "loopback_address",
    "resolves",
    "route_address",
]


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
