"""Job: what is to run, where, and with which variables, resolved once for all launchers."""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from rabit.errors import InvalidArgument
from rabit.launch.hosts import Host
from rabit.launch.nodes.ssh import SshOptions
from rabit.launch.nodes.way import Way
from rabit.launch.plan import Plan
from rabit.launch.program import Program
from rabit.launch.room import Grows
from rabit.rendezvous import addresses
from rabit.rendezvous.interfaces import pick_address

__all__ = ["Elastic", "Job"]

_INTERFACES = "RABIT_NETWORK_INTERFACES"


@dataclass(frozen=True)
class Elastic:
    """A job that continues when ranks are lost.

    least: ranks that it needs.  stores: that hold its membership; with several it continues when the launcher is
    lost.  grows: how it starts processes while it runs; None: it does not.
    """

    least: int
    stores: int = 1
    grows: Grows | None = None


@dataclass(frozen=True, kw_only=True)
class Job(Program):
    """A job, whose settings were read and whose hosts were looked up.  Flags of rabitrun fill fields of their names.

    plan: its hosts know their addresses.  environ: of the launcher.  tuning, user: variables of every rank on top
    of it, the user's last.  notices: for the user, of the settings.  has_bare_rank_0: what rank 0 writes is the
    program's whole output, and gets no prefix.  hosts_source: the cluster that named the hosts; "": the user, or
    nobody.  secret: None: the launcher makes one.  mpi_arguments: of mpiexec.
    restart: how often the job has been started again.
    """

    plan: Plan
    environ: Mapping[str, str]
    tuning: Mapping[str, str] = field(default_factory=dict)
    user: Mapping[str, str] = field(default_factory=dict)
    notices: tuple[str, ...] = ()
    elastic: Elastic | None = None
    hosts_source: str = ""
    start_s: float = 30.0
    max_restarts: int = 0
    restart: int = 0
    ssh: Way = field(default_factory=SshOptions)
    mpi_arguments: tuple[str, ...] = ()
    secret: bytes | None = field(default=None, repr=False)
    output_folder: Path | None = None
    has_timestamps: bool = False
    is_collapsed: bool = False
    is_verbose: bool = False
    has_bare_rank_0: bool = False

    def again(self, count: int) -> Job:
        """The job as it is started for the time after `count` failures."""
        # In a folder of its own: why the attempt before has failed is in its files.
        folder = self.output_folder and self.output_folder / f"restart.{count}"
        tuning = {**self.tuning, "RABIT_RESTART": str(count)}
        return dataclasses.replace(self, restart=count, tuning=tuning, output_folder=folder)

    @property
    def grows(self) -> Grows | None:
        """How the job starts processes while it runs; None: it does not."""
        return None if self.elastic is None else self.elastic.grows

    @cached_property
    def hosts(self) -> tuple[Host, ...]:
        """All hosts: those of the plan first, then those on which an elastic job may grow."""
        planned = [host.host for host in self.plan.hosts]
        return tuple(dict.fromkeys([*planned, *(() if self.grows is None else self.grows.hosts)]))

    def starts_here(self, host: Host) -> bool:
        """True if the ranks of `host` are children of the launcher, without ssh."""
        return not self.ssh.is_always and host.is_here

    @property
    def interfaces(self) -> str:
        """The network interfaces that the user has named, with commas; "": none."""
        return self.tuning.get(_INTERFACES) or self.environ.get(_INTERFACES, "")

    @cached_property
    def store_host(self) -> str:
        """The address on which the store listens; "" for a job of one rank, which needs none.

        Raises InvalidArgument if no host has an address.
        """
        if self.plan.size == 1 and self.grows is None:
            return ""
        # With ssh or without, this machine reaches its loopback.
        away = [host for host in self.hosts if not host.is_here]
        if not away:
            return addresses.loopback_address()
        names = [name.strip() for name in self.interfaces.split(",") if name.strip()]
        if names:
            return pick_address(names)
        known = [host.address for host in away if host.address]
        if not known:
            raise InvalidArgument(
                f"the host {away[0].name.rpartition('@')[2]!r} does not resolve: {away[0].problem}. Use a name that "
                "every host knows, or an address."
            )
        return addresses.route_address(known[0])

    @property
    def interface_note(self) -> str:
        """Of a job on this host alone, which uses none: the interfaces that are named for it and absent; "": none."""
        names = [name.strip() for name in self.interfaces.split(",") if name.strip()]
        known = sorted(name for _, name in socket.if_nameindex())
        if not names or self.store_host != addresses.loopback_address() or set(names) & set(known):
            return ""
        return (
            f"the network interface {', '.join(names)} (--network-interfaces or {_INTERFACES}) does not exist "
            f"here: known are {', '.join(known)}. This job uses the loopback; on several hosts it would not start."
        )
