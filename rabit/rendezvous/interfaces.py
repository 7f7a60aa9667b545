"""Addresses of the network interfaces of this host."""

from __future__ import annotations

import ctypes
import ipaddress
import os
import socket
from collections.abc import Sequence

from rabit.errors import InvalidArgument

__all__ = ["interface_addresses", "pick_address"]

_IFF_UP = 1
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def interface_addresses(name: str) -> list[str]:
    """Addresses of the interface `name`, IPv4 first; without link-local IPv6 ones.

    Raises InvalidArgument when the interface is unknown, down or has no address.
    """
    known = sorted(interface for _, interface in socket.if_nameindex())
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
    *((field, ctypes.c_void_p) for field in ("netmask", "destination", "data")),
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
    known = {interface for _, interface in socket.if_nameindex()}
    for name in interfaces:
        if name in known:
            return interface_addresses(name)[0]
    return interface_addresses(interfaces[0])[0]
