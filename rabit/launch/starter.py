"""Starter: makes the node of each host of a job."""

from __future__ import annotations

import dataclasses
import secrets
import selectors

from rabit.launch.host_job import HostJob, RankJob
from rabit.launch.hosts import Host
from rabit.launch.job import Job
from rabit.launch.meeting import Meeting
from rabit.launch.nodes.local import LocalNode
from rabit.launch.nodes.node import Events, Node
from rabit.launch.nodes.ssh import RemoteNode
from rabit.launch.options.environment import base_environ, portable_environ
from rabit.launch.plan import HostPlan, RankPlace
from rabit.launch.program import Program
from rabit.launch.torch_environ import place_environ
from rabit.rendezvous import addresses
from rabit.rendezvous.placement import host_key
from rabit.version import __version__

__all__ = ["Starter"]


class Starter:
    """Makes nodes, which start nothing yet.  One thread only, that of the selector."""

    def __init__(self, job: Job, meeting: Meeting, selector: selectors.BaseSelector) -> None:
        self._job = job
        self._meeting = meeting
        self._selector = selector

    def node(self, plan: HostPlan, events: Events) -> Node:
        """Of a host of the plan."""
        return self._node(plan.host, self._host_job(plan), events)

    def newcomer(self, number: int, host: Host, slot: int, events: Events) -> Node:
        """Of one process that comes to an elastic job that runs, on this slot of its host."""
        slots = max(1, host.slots)
        # Programs choose their device by it: a spare beyond the slots shares one.
        local_rank, local_size = slot % slots, min(slots, number + 1)
        place = RankPlace(number, local_rank, local_size, number, number + 1)
        job = self._host_job(HostPlan(host, (place,)))
        return self._node(host, dataclasses.replace(job, slots=slots, first_slot=slot), events)

    def _node(self, host: Host, host_job: HostJob, events: Events) -> Node:
        """Children of this process end with it; what an agent runs can continue."""
        is_here = self._job.starts_here(host)
        if is_here and not host_job.stores:
            return LocalNode(host_job, events, self._selector)
        return RemoteNode(host, host_job, self._job.ssh, events, self._selector, is_here)

    def _host_job(self, plan: HostPlan) -> HostJob:
        job, size = self._job, self._job.plan.size
        stores = self._meeting.stores
        return HostJob(
            **{field.name: getattr(job, field.name) for field in dataclasses.fields(Program)},
            job=secrets.token_hex(8),
            version=__version__,
            host=str(plan.host),
            environ=self._environ(plan.host),
            ranks=(
                *(RankJob(place.rank, _place_environ(place, size)) for place in plan.places),
                *(RankJob(server.number, server.environ(size), is_server=True) for server in plan.servers),
            ),
            secret=self._meeting.secret if size > 1 or job.grows is not None else None,
            stores=stores if len(stores) > 1 else (),
        )

    def _environ(self, host: Host) -> dict[str, str]:
        job, is_here = self._job, self._job.starts_here(host)
        inherited = base_environ(job.environ) if is_here else portable_environ(job.environ)
        environ = {"PYTHONUNBUFFERED": "1", **inherited, **job.tuning, **self._meeting.environ}
        is_one = len(job.plan.hosts) == 1 and job.grows is None
        if is_one and "RABIT_BIND_ADDRESS" not in environ:
            environ["RABIT_BIND_ADDRESS"] = addresses.loopback_address()
        if is_here and not is_one:
            # Several names of one machine stand for several hosts, as when a layout is tried out.
            environ["RABIT_HOST_KEY"] = f"{host_key({})}/{host.name}"
        return {**environ, **job.user}


def _place_environ(place: RankPlace, size: int) -> dict[str, str]:
    """How one rank knows its place; one beyond `size` comes to a job that runs."""
    joins = {"RABIT_JOINS": "1"} if place.rank >= size else {}
    size = max(size, place.rank + 1)
    return {**place.environ(size), **place_environ(place, size), **joins}
