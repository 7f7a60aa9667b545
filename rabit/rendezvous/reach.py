"""Reach: the processes that a process cannot connect to."""

from __future__ import annotations

import contextlib
import errno
import selectors
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Protocol

from rabit.rendezvous.host_port import split_address

__all__ = ["Addresses", "not_reached", "unreachable"]

# The host answers, or a router says that there is none: anything else is silence.
_AWAY = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ETIMEDOUT)


class Addresses(Protocol):
    """Where members say how they are reached; see StoreClient."""

    def told(self, key: str) -> bytes | None:
        """The value of `key`; None: it has none."""


def not_reached(
    store: Addresses, members: Sequence[int], member: int, limit_s: float
) -> list[int]:
    """Those of the other members whose hosts do not answer `member`.  Blocks, at most `limit_s`."""
    addresses = {}
    for other in members:
        told = None if other == member else store.told(f"member/address/{other}")
        # A member without an address has not started; others notice that.
        if told is not None:
            addresses[other] = told.decode()
    return unreachable(addresses, limit_s)


def unreachable(addresses: Mapping[int, str], limit_s: float) -> list[int]:
    """The members whose hosts do not answer in this time.  A process that has ended does not count."""
    deadline = time.monotonic() + limit_s
    away: list[int] = []
    with contextlib.ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        for member, address in addresses.items():
            host, port = split_address(address, f"the address of process {member}")
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            dialled = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
            dialled.setblocking(False)
            error = dialled.connect_ex((host, port))
            if error == errno.EINPROGRESS:
                selector.register(dialled, selectors.EVENT_WRITE, member)
            elif error in _AWAY:
                away.append(member)
        while selector.get_map() and (left := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                selector.unregister(key.fileobj)
                assert isinstance(key.fileobj, socket.socket)
                if key.fileobj.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) in _AWAY:
                    away.append(key.data)
        away += [key.data for key in selector.get_map().values()]
    return sorted(away)
