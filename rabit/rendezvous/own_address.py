"""The address of this host at which its peers reach it: as the user says, else of a route to them."""

from __future__ import annotations

import os
from collections.abc import Mapping

from rabit.errors import InvalidArgument
from rabit.rendezvous import addresses
from rabit.rendezvous.interfaces import pick_address

__all__ = ["bind_address", "reachable_address"]


def bind_address(environ: Mapping[str, str], store_host: str, store_port: int) -> str:
    """The address on which this rank listens: as configured, else that of the route to the store."""
    given = environ.get("RABIT_BIND_ADDRESS", "").strip()
    if given:
        return given
    interfaces = _interfaces(environ)
    if interfaces and not addresses.is_loopback(store_host):
        return pick_address(interfaces)
    return addresses.route_address(store_host, store_port)


def reachable_address(environ: Mapping[str, str], host: str = "", towards: str = "") -> str:
    """An address of this host at which other hosts arrive.

    host: how they know it, for messages.  towards: an address that all of them reach, if one is
    known: its network counts where none is given.
    """
    given = environ.get("RABIT_BIND_ADDRESS", "").strip()
    if given:
        return given
    interfaces = _interfaces(environ)
    if interfaces:
        return pick_address(interfaces)
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


def _interfaces(environ: Mapping[str, str]) -> list[str]:
    names = (
        environ.get("RABIT_INTERFACES")
        or environ.get("RABIT_NETWORK_INTERFACES")
        or environ.get("HOROVOD_GLOO_IFACE")
        or ""
    )
    return [part.strip() for part in names.split(",") if part.strip()]
