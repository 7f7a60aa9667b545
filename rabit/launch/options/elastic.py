"""The flags of elastic jobs: how few ranks they need, and how they grow."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Sequence

from rabit.errors import InvalidArgument
from rabit.launch.hosts import Host, parse_hostfile
from rabit.launch.job import Elastic
from rabit.launch.options.first_hosts import HostScript
from rabit.launch.room import Cooldown, Grows
from rabit.rendezvous.membership import MEMBERS_MAX

__all__ = ["elastic_asked", "idle_bounds"]

_STORES = (1, 3, 5)


def elastic_asked(
    parsed: argparse.Namespace, hosts: Sequence[Host], script: HostScript | None, size: int
) -> Elastic | None:
    """How a job of `size` ranks on `hosts` continues when ranks are lost; None: it may lose none.

    Raises InvalidArgument for flags of elastic jobs without --min-np, or out of range.
    """
    stores, cooldown = _store_count(parsed), _cooldown(parsed)
    if parsed.spares < 0:
        raise InvalidArgument(f"--spares is {parsed.spares}: expected 0 or more.")
    if parsed.min_np is None:
        if parsed.spares:
            raise InvalidArgument(
                f"--spares is {parsed.spares}: only elastic jobs continue when a rank is lost. Add --min-np N, "
                "the smallest number of ranks, or leave out --spares."
            )
        return None
    if parsed.min_np < 1:
        raise InvalidArgument(f"--min-np is {parsed.min_np}: expected at least 1.")
    if not (parsed.max_np or parsed.spares or script):
        return Elastic(parsed.min_np, stores)
    most = parsed.max_np or (MEMBERS_MAX if script else size)
    look, interval_s = _look(parsed, script), parsed.host_discovery_interval
    return Elastic(
        parsed.min_np, stores, Grows(hosts, most, parsed.spares, look, interval_s, cooldown)
    )


def idle_bounds(parsed: argparse.Namespace) -> list[str]:
    """A notice for the user whose --max-np changes nothing, as in Horovod."""
    is_idle = parsed.min_np is None and None not in (parsed.np, parsed.max_np)
    if not is_idle or parsed.max_np <= parsed.np:
        return []
    return [f"--max-np is {parsed.max_np}, and the job keeps its {parsed.np} ranks: it grows with --min-np N."]


def _store_count(parsed: argparse.Namespace) -> int:
    """How many stores hold the membership together; 1: the one of the launcher."""
    count: int = parsed.store_replicas
    if count not in _STORES:
        raise InvalidArgument(
            f"--store-replicas is {count}: expected 1, 3 or 5. A majority of the stores has to survive, and "
            "an even number survives no more losses than the odd number below it."
        )
    if count > 1 and parsed.min_np is None:
        raise InvalidArgument(
            f"--store-replicas is {count}: replicas let an elastic job continue without rabitrun, and this job is "
            "not elastic. Add --min-np N, the smallest number of ranks, or leave out --store-replicas."
        )
    return count


def _look(
    parsed: argparse.Namespace, script: HostScript | None
) -> Callable[[], Sequence[Host]] | None:
    if script is not None:
        return script.hosts
    if parsed.hostfile is not None:
        return functools.partial(parse_hostfile, parsed.hostfile)
    return None


def _cooldown(parsed: argparse.Namespace) -> Cooldown:
    given = parsed.blacklist_cooldown_range
    if given is None:
        return Cooldown()
    first_s, most_s = given
    if not 0 < first_s <= most_s:
        raise InvalidArgument(
            f"--blacklist-cooldown-range is {first_s:g} {most_s:g}: expected two times in seconds, the "
            "shortest first and above 0."
        )
    return Cooldown(first_s, most_s)
