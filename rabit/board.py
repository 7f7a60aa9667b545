"""connect: an engine whose ranks find each other through a board that they share already."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Protocol

from rabit.config.config import Config, process_environment
from rabit.diagnostics.ending import tell_on_failure, watch_ending
from rabit.engine.engine import Engine
from rabit.errors import InvalidArgument
from rabit.rendezvous import placement
from rabit.rendezvous.addresses import loopback_address
from rabit.rendezvous.discovery import StoreServer
from rabit.rendezvous.host_port import format_address, split_address
from rabit.rendezvous.own_address import bind_address, reachable_address

__all__ = ["Board", "connect"]


class Board(Protocol):
    """What ranks share before they are connected: torch's Store, a Ray actor, a folder.

    A board that is reached through the network may have a method `host()`: the name or address at
    which all ranks reach it, empty if there is none.  They then use that network.
    """

    def set(self, key: str, value: str) -> None:
        """Makes `value` visible to all ranks."""

    def get(self, key: str) -> bytes | str:
        """The value of `key`; blocks until it has been set, with a deadline of its own."""


class ConnectedEngine(Engine):
    """An Engine that serves its own rendezvous store on rank 0."""

    def __init__(self, config: Config, server: StoreServer | None) -> None:
        self._server = server
        super().__init__(config)
        tell_on_failure(self)

    def close(self, timeout: float = 30.0) -> None:
        super().close(timeout)
        server, self._server = self._server, None
        if server is not None:
            server.close()


def connect(board: Board, rank: int, size: int, config: Config | None = None) -> Engine:
    """Starts an engine of `size` ranks that meet through `board`, without a launcher.

    board: shared by these ranks alone, and used for one call: give each engine a prefix of its own.
    A process that can read it can join the job: rank 0 puts the secret there, except where RABIT_SECRET_FILE or
    `config.secret` gives all ranks one.
    config: None reads the environment; rank, size, store and secret are replaced.
    Blocks until every rank has called it, at most `config.connect_timeout` seconds.
    """
    if not 0 <= rank < size:
        raise InvalidArgument(f"connect: rank {rank} is not between 0 and {size - 1}. Correct it.")
    environ = process_environment()
    found = Config.from_environ(environ) if config is None else config
    environ = placement.with_settings(environ, found)
    # The board may wait as long as it likes; a launcher that knows who waits ends the job sooner.
    watch_ending(rank, environ, awaits_all=size == found.size)
    own = placement.host_key(environ)
    board.set(f"host.{rank}", own)
    hosts = [_text(board.get(f"host.{peer}")) for peer in range(size)]
    local = [peer for peer in range(size) if hosts[peer] == own]
    local_rank = local.index(rank)
    column = [peer for peer in range(size) if hosts[:peer].count(hosts[peer]) == local_rank]
    found = found.replace_from(
        "arguments of rabit.connect",
        rank=rank,
        size=size,
        local_rank=local_rank,
        local_size=len(local),
        cross_rank=column.index(rank),
        cross_size=len(column),
        host_key=own,
        store_address="",
        secret=b"",
    )
    if size == 1:
        return ConnectedEngine(found, None)
    given = found.secret_file and placement.secret_from_file(found.secret_file)
    if rank == 0:
        return _serve(board, found, given or None, len(local) == size)
    meeting = json.loads(_text(board.get("meeting")))
    host, port = split_address(meeting["store"], "the store's address")
    is_on_one_host = len(local) == size
    return ConnectedEngine(
        found.replace(
            store_address=meeting["store"],
            secret=given or bytes.fromhex(meeting["secret"]),
            bind_address=loopback_address()
            if is_on_one_host
            else bind_address(environ, host, port),
        ),
        None,
    )


def _serve(board: Board, config: Config, given: bytes | None, is_on_one_host: bool) -> Engine:
    secret = given or os.urandom(32)
    if is_on_one_host:
        address = loopback_address()
    else:
        towards: Callable[[], str] = getattr(board, "host", str)
        address = config.bind_address or reachable_address(
            placement.with_settings(process_environment(), config), towards=towards()
        )
    server = StoreServer(address, 0, secret, config.library)
    store = format_address(address, server.port)
    board.set("meeting", json.dumps({"store": store, "secret": "" if given else secret.hex()}))
    try:
        return ConnectedEngine(
            config.replace(store_address=store, secret=secret, bind_address=address), server
        )
    except BaseException:
        server.close()
        raise


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
