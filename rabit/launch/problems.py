"""Texts of what ends a job and is no rank's failure."""

from __future__ import annotations

from collections.abc import Sequence

from rabit.launch.nodes.node import Node
from rabit.launch.plan import Plan
from rabit.launch.roster import Roster

__all__ = ["missed_text", "too_late_text"]


def too_late_text(late: Sequence[Node], start_s: float) -> str:
    """Ranks of these nodes have not started in time."""
    attempt = f"Try '{late[0].by_hand}' by hand, or set" if late[0].by_hand else "Set"
    return (
        f"the ranks of {', '.join(node.host for node in late)} have not started within {start_s:g} s. "
        f"{attempt} --start-timeout higher."
    )


def missed_text(roster: Roster, plan: Plan) -> str:
    """Ranks wait in init(), or in another call in which all meet, for one that has ended; "" if none does."""
    missed = roster.missed_in_init()
    if missed is None:
        return ""
    rank, waiting = missed
    return (
        f"{plan.name_of(rank)} of {plan.size} (host {roster[rank].host}) ended without an error and without "
        f"rabit.init() or init_process_group(), in which {plan.name_of(waiting)} waits for all ranks. Let "
        "every rank call it, or start fewer ranks (-np)."
    )
