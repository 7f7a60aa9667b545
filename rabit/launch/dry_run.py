"""What would be started, as text."""

from __future__ import annotations

import shlex

from rabit.errors import InvalidArgument
from rabit.launch.launchers.rabitrun import (
    Request,
    is_started_here,
    store_host,
    store_places_of,
    thread_note,
)
from rabit.launch.nodes.ssh import ssh_command
from rabit.launch.processors import HostProcessors, as_list, bind_with_servers

__all__ = ["describe"]


def describe(request: Request) -> str:
    """The plan, one line for each rank; starts nothing and contacts nobody but the resolver."""
    plan = request.plan
    hosts = "1 host" if len(plan.hosts) == 1 else f"{len(plan.hosts)} hosts"
    ranks = "1 rank" if plan.size == 1 else f"{plan.size} ranks"
    lines = [f"{ranks} on {hosts}, {thread_note(request)}"]
    try:
        address = store_host(request)
    except InvalidArgument as error:
        lines.append(f"this job cannot start: {error}")
    else:
        if address and request.stores > 1:
            hosts_of = ", ".join(str(each.host) for each in store_places_of(request))
            lines.append(f"stores: on {hosts_of}, ports chosen by the system; secret: made for the job")
        elif address:
            lines.append(f"store: {address}, port chosen by the system; secret: made for the job")
    lines.append(
        "for torch.distributed: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, "
        "MASTER_PORT"
    )
    shared = {**request.tuning, **request.user}
    if shared:
        lines.append("variables: " + " ".join(f"{k}={shlex.quote(v)}" for k, v in shared.items()))
    for each in plan.hosts:
        bound, serving = [""] * len(each.places), [""] * len(each.servers)
        if is_started_here(request, each.host):
            lines.append(f"host {each.host}, without ssh:")
            if request.bind_to != "none":
                counts = len(each.places), len(each.servers)
                sets = bind_with_servers(request.bind_to, *counts, HostProcessors.here())
                bound, serving = ([f"on processors {as_list(e)}: " for e in ours] for ours in sets)
        else:
            command = ssh_command(each.host, request.ssh, request.environ.get("PYTHONPATH", ""))
            lines.append(f"host {each.host}, through: {shlex.join(command)}")
        for place, where in zip(each.places, bound, strict=True):
            numbers = " ".join(f"{k}={v}" for k, v in place.environ(plan.size).items())
            lines.append(f"  {where}{numbers} {shlex.join(request.command)}")
        for server, where in zip(each.servers, serving, strict=True):
            lines.append(f"  {where}summation server {server.server}")
    return "\n".join(lines)
