"""The variables by which torch.distributed meets, as torchrun sets them.

Programs that call init_process_group, and libraries that look for torchrun's variables, then work
under rabitrun as they are.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
from collections.abc import Iterator

from rabit.launch.plan import RankPlace
from rabit.rendezvous.addresses import loopback_address

__all__ = ["MASTER", "PLACE", "master_environ", "place_environ"]

PLACE = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")
MASTER = ("MASTER_ADDR", "MASTER_PORT")
# Below those that Linux gives out by itself.
_PORTS = range(20_000, 30_000)


def place_environ(place: RankPlace, size: int) -> dict[str, str]:
    """The variables of one rank."""
    return {
        "RANK": str(place.rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(place.local_rank),
        "LOCAL_WORLD_SIZE": str(place.local_size),
    }


@contextlib.contextmanager
def master_environ(first_host: str, address: str) -> Iterator[dict[str, str]]:
    """The variables that say where rank 0 listens when torch asks it to.

    first_host: where rank 0 runs, or "": on this machine, which the others reach by `address`
    ("": all ranks run here).  Here the port is kept from everyone else as long as the context
    lasts; on another host it is drawn by lot, and torch tells if it is in use.
    """
    if first_host:
        port = secrets.choice(_PORTS)
        yield {"MASTER_ADDR": first_host, "MASTER_PORT": str(port)}
        return
    address = address or loopback_address()
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as kept:
        # A socket that is bound and does not listen keeps the number from being given out, and
        # lets a listener that asks for the same reuse, as torch's does, have it.
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept.bind((address, 0))
        yield {"MASTER_ADDR": address, "MASTER_PORT": str(kept.getsockname()[1])}
