"""Replicas: copies of what is a rank's own, in the memory of ranks on other hosts."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rabit.engine.current import current_engine
from rabit.engine.process_set import global_process_set
from rabit.errors import InvalidArgument
from rabit.ops.collectives import alltoall
from rabit.ops.draft import Draft
from rabit.ops.objects import to_pickle
from rabit.session import rank
from rabit.types import Kind

__all__ = ["Replicas", "Standing", "keepers"]


_EXCHANGE = "rabit.elastic.replicas"  # the name of the operation


@dataclass(frozen=True)
class Standing:
    """What a rank says when the ranks of a new membership come together.

    commits: that it has made; -1: it has just come and has no state.  seat: see Membership.seat_of.
    is_heir: it has come for a rank that was lost.  kept: commit and seat of each copy that it holds.
    begins: it is one of the first ranks, and a loss has kept it from having a state with the others.
    """

    commits: int
    seat: int
    is_heir: bool
    host: str
    kept: frozenset[tuple[int, int]]
    begins: bool


def keepers(hosts: Sequence[str], count: int) -> list[list[int]]:
    """The ranks that keep copies for each rank, by the hosts of the ranks.

    They are on the `count` hosts that come after its own, in the order of the lowest ranks, and the ranks of
    a host are spread over those of the next.  On fewer other hosts there are fewer copies.
    """
    ranks_of: dict[str, list[int]] = {}
    for number, host in enumerate(hosts):
        ranks_of.setdefault(host, []).append(number)
    names = list(ranks_of)
    found = []
    for number, host in enumerate(hosts):
        place, own = ranks_of[host].index(number), names.index(host)
        others = [names[(own + index) % len(names)] for index in range(1, len(names))][:count]
        found.append([ranks_of[other][place % len(ranks_of[other])] for other in others])
    return found


class Replicas:
    """The copies that this rank sends to others, and those that it keeps for them.  One thread only.

    count: hosts that keep a copy of each rank's part.  A commit's copies are kept until the one after the next.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._kept: list[tuple[int, dict[int, bytes]]] = []  # the last two commits, with the parts by seat
        self._seats: list[int] = []
        self._keepers: list[int] = []  # of this rank
        self._count_now = count

    def kept(self) -> frozenset[tuple[int, int]]:
        """Commit and seat of each copy that is here."""
        return frozenset((commit, seat) for commit, parts in self._kept for seat in parts)

    def place(self, ranks: Sequence[Standing]) -> None:
        """These are the ranks from now on.

        Raises InvalidArgument at the start of a job that has too few hosts; one that has lost them continues.
        """
        hosts = [peer.host for peer in ranks]
        others = len(set(hosts)) - 1
        if others < self.count and all(peer.commits < 0 for peer in ranks):
            raise InvalidArgument(
                f"replicas={self.count} on rank {rank()}: copies are kept on {self.count} other hosts, and the "
                f"{len(hosts)} ranks of this job are on {others + 1}. Start it on at least {self.count + 1} hosts, "
                "or ask for fewer copies."
            )
        found = min(self.count, others)
        if found != self._count_now and rank() == 0:
            print(
                f"rabit: the ranks are on {others + 1} hosts now, so {found} others keep copies of what is a "
                f"rank's own (replicas={self.count}).",
                file=sys.stderr,
            )
        self._count_now = found
        self._seats = [peer.seat for peer in ranks]
        self._keepers = keepers(hosts, self.count)[rank()]

    def exchange(self, commit: int, part: Any) -> None:
        """Sends this rank's part of a commit to those that keep it, and keeps theirs.  Blocks.

        The copies of the commit before stay: ranks may go back to it.
        """
        try:
            data = to_pickle(part)
        except InvalidArgument as error:
            self.refuse(error)
            raise
        found = self._send(dict.fromkeys(self._keepers, data), _EXCHANGE)
        parts = {self._seats[source]: owner for source, owner in found.items()}
        self._kept = [*self._kept, (commit, parts)][-2:]

    def refuse(self, error: InvalidArgument) -> None:
        """Takes the place of `exchange` on a rank that has no part: raises the error, also on those that wait there."""
        with Draft.of(current_engine(), Kind.ALLTOALL, _EXCHANGE, global_process_set) as call:
            raise call.refusal(str(error)) from error.__cause__

    def hand_over(self, commit: int, ranks: Sequence[Standing]) -> Any:
        """Gives ranks that come for others the parts of those in this commit.  Blocks.

        Returns the part that this rank has got; None: it has its own, or no one has a copy.
        Copies of later commits are dropped: all ranks go back.
        """
        self._kept = [owner for owner in self._kept if owner[0] <= commit]
        keeper_of: dict[int, int] = {}  # of each rank that comes for another
        for number, peer in enumerate(ranks):
            holders = [n for n, other in enumerate(ranks) if (commit, peer.seat) in other.kept]
            if peer.commits < 0 and holders:
                keeper_of[number] = holders[0]
            elif peer.commits < 0 and peer.is_heir and number == rank():
                print(
                    f"rabit: rank {number} begins without what its predecessor had of its own: the ranks that "
                    f"kept the {self.count} copies are lost as well.",
                    file=sys.stderr,
                )
        if not keeper_of:
            return None
        wanted = {
            number: self._part(commit, ranks[number].seat)
            for number, keeper in keeper_of.items()
            if keeper == rank()
        }
        found = self._send(wanted, "rabit.elastic.part")
        return pickle.loads(found[keeper_of[rank()]]) if rank() in keeper_of else None

    def left_over(self, commit: int, ranks: Sequence[Standing]) -> list[Any]:
        """Parts in this commit of lost ranks that nobody has replaced, where this rank is the first to have a copy.

        Call after `hand_over`.
        """
        seats = {peer.seat for peer in ranks}
        found = []
        for at, seat in sorted(self.kept()):
            if at == commit and seat not in seats:
                holders = [n for n, other in enumerate(ranks) if (commit, seat) in other.kept]
                if holders[:1] == [rank()]:
                    found.append(pickle.loads(self._part(commit, seat)))
        return found

    def _part(self, commit: int, seat: int) -> bytes:
        return next(parts[seat] for at, parts in reversed(self._kept) if at == commit and seat in parts)

    def _send(self, data: Mapping[int, bytes], name: str) -> dict[int, bytes]:
        """Gives some ranks some bytes each; what has come from which."""
        splits = [len(data.get(index, b"")) for index in range(len(self._seats))]
        everything = np.frombuffer(b"".join(data[owner] for owner in sorted(data)), np.uint8)
        came, sizes = alltoall(everything, splits, name)
        ends = np.cumsum(sizes)
        return {
            source: came[end - size : end].tobytes()
            for source, (size, end) in enumerate(zip(sizes, ends.tolist(), strict=True))
            if size
        }
