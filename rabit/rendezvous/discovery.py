"""Discovery: finds the placement of this process, and serves the store where that is its task.

rabitrun, torchrun, Open MPI, MPICH, and Slurm's srun each leave variables in the environment of
the processes they start.  `discover` reads them; nothing else in the package knows a launcher.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from rabit._native import check, ffi, load
from rabit.config.config import Config
from rabit.errors import Unsupported
from rabit.rendezvous import environments
from rabit.rendezvous.host_port import format_address, split_address
from rabit.rendezvous.placement import Placement, host_key, under_rabitrun, with_settings

__all__ = ["Discovery", "StoreServer", "discover"]


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
        return under_rabitrun(base, environ)
    from rabit.rendezvous import other_launchers

    return other_launchers.find(base, marks, environ, timeout)


class StoreServer:
    """The rendezvous store, served by a native thread of this process until `close`."""

    def __init__(self, address: str, port: int, secret: bytes, library_path: str = "") -> None:
        self._library: Any = load(library_path)
        slot, bound = ffi.new("rabit_store**"), ffi.new("int32_t*")
        options = f"address={address}\nport={port}\nsecret={secret.hex()}\n"
        check(self._library, self._library.rabit_store_start(options.encode(), slot, bound))
        self._store: Any = slot[0]
        self.port = int(bound[0])

    def close(self) -> None:
        """Stops serving.  Idempotent."""
        store, self._store = self._store, None
        if store is not None:
            self._library.rabit_store_stop(store)


class Discovery:
    """Where the ranks of this job find each other; lives as long as the process."""

    def __init__(self) -> None:
        self._server: StoreServer | None = None
        self._from_comm: Placement | None = None

    def place(self, config: Config, environ: Mapping[str, str], comm: Any) -> Config:
        """`config` with the rank, the store and the secret of this process.

        A config that says all of it is left alone.
        """
        if config.size > 1 and config.store_address and config.secret:
            return config
        if comm is not None:
            placement = self._place_comm(comm, config)
        else:
            told = with_settings(environ, config)
            placement = discover(told, config.connect_timeout)
            if placement.serves_store:
                from rabit.rendezvous.other_launchers import publish

                placement = publish(placement, self._serve(placement, config))
        return config.replace_from(
            f"launcher ({placement.launcher})",
            rank=placement.rank,
            size=placement.size,
            local_rank=placement.local_rank,
            local_size=placement.local_size,
            cross_rank=placement.cross_rank,
            cross_size=placement.cross_size,
            host_key=placement.host_key,
            store_address=placement.store_address,
            secret=placement.secret or config.secret,
            bind_address=_addresses_of(config) or placement.bind_address or config.bind_address,
        )

    def close(self) -> None:
        """Stops the store, if this process serves it."""
        server, self._server = self._server, None
        if server is not None:
            server.close()

    def _serve(self, placement: Placement, config: Config) -> int:
        if self._server is None:
            host, port = split_address(placement.store_address, "the store's address")
            secret = placement.secret or b""
            self._server = StoreServer(host, port, secret, config.library)
        return self._server.port

    def _place_comm(self, comm: Any, config: Config) -> Placement:
        """The placement that an mpi4py communicator gives; rank 0 serves the store."""
        if not all(hasattr(comm, name) for name in ("Get_rank", "Split_type", "bcast")):
            raise Unsupported(
                f"init(comm={comm!r}): expected None or an mpi4py communicator. For a subset of "
                "the ranks use init(process_sets=[ProcessSet(ranks)])."
            )
        if self._from_comm is None:
            self._from_comm = self._meet_on(comm, config)
        return self._from_comm

    def _meet_on(self, comm: Any, config: Config) -> Placement:
        from mpi4py import MPI

        from rabit.rendezvous.addresses import loopback_address
        from rabit.rendezvous.own_address import bind_address

        told = with_settings({}, config)
        rank, size = comm.Get_rank(), comm.Get_size()
        host = comm.Split_type(MPI.COMM_TYPE_SHARED)
        local_rank, local_size = host.Get_rank(), host.Get_size()
        cross = comm.Split(local_rank, rank)
        names = comm.allgather(MPI.Get_processor_name())
        placement = Placement(
            rank=rank,
            size=size,
            local_rank=local_rank,
            local_size=local_size,
            cross_rank=cross.Get_rank(),
            cross_size=cross.Get_size(),
            host_key=host_key(told),
            launcher="mpi4py",
        )
        found: tuple[str, bytes] | None = None
        if rank == 0:
            others = [name for name in names if name != names[0]]
            own = config.bind_address or loopback_address()
            address = bind_address(told, others[0], 9) if others else own
            secret = os.urandom(32)
            self._server = StoreServer(address, 0, secret, config.library)
            found = format_address(address, self._server.port), secret
        store, secret = comm.bcast(found, 0)
        store_host, store_port = split_address(store, "the store's address")
        return placement._replace(
            store_address=store,
            secret=secret,
            bind_address=bind_address(told, store_host, store_port),
        )


def _addresses_of(config: Config) -> str:
    """One address of each interface of RABIT_INTERFACES, with commas between; "" where none is named."""
    names = [name.strip() for name in config.interfaces.split(",") if name.strip()]
    if not names:
        return ""
    from rabit.rendezvous.interfaces import interface_addresses

    return ",".join(interface_addresses(name)[0] for name in names)
