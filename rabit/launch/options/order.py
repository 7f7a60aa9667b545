"""`rabitrun --order plan.json`: hosts in the order of a plan, so that ranks next to each other are close."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rabit.errors import InvalidArgument
from rabit.launch.hosts import Host
from rabit.planner.document import read_plan

__all__ = ["in_order"]


def in_order(hosts: Sequence[Host], path: Path) -> list[Host]:
    """`hosts` in the order that the plan at `path` has for a ring.

    Raises InvalidArgument if the plan cannot be read, or names other hosts.
    """
    document = read_plan(path)
    named = {host.name: host for host in hosts}
    if missing := sorted(set(named) ^ set(document.hosts)):
        raise InvalidArgument(
            f"--order {path}: the plan is of the hosts {', '.join(document.hosts)}, and -H names "
            f"{', '.join(named)}: they differ in {', '.join(missing)}. Make a plan of these hosts with 'rabitrun plan'."
        )
    return [named[document.hosts[place]] for place in document.order]
