"""Acceptance: what one of several stores holds of a key that they hold together.  Pure.

Source: Rystsov, "CASPaxos: Replicated State Machines without logs" (2018).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple

from rabit.errors import Internal

__all__ = ["HISTORY", "VALUE_MAX", "Acceptance", "Ballot"]

# So many of the newest changes are known by their writers: who repeats a change after more of them
# by others cannot tell whether it has happened.
HISTORY = 32
_HEADER = struct.Struct("<QQQQQB")
# A store takes values of 64 KiB, and what is held besides the value is part of them.
VALUE_MAX = 65536 - _HEADER.size - 8 * HISTORY


class Ballot(NamedTuple):
    """The number of an attempt: of two the one that compares higher wins.  (0, 0): none."""

    counter: int = 0
    proposer: int = 0

    def above(self, proposer: int) -> Ballot:
        """One that is higher than this, of `proposer`."""
        return Ballot(self.counter + 1, proposer)


_NONE = Ballot()


@dataclass(frozen=True)
class Acceptance:
    """The state of an acceptor of Paxos.

    promised: a ballot below this is refused.  accepted: of the ballot whose proposal it holds.  version:
    how often the key has been set in that proposal, and `value` what it is.  writers: who made the
    newest of these changes, each a number of its own, the last one last.
    """

    promised: Ballot = _NONE
    accepted: Ballot = _NONE
    version: int = 0
    writers: tuple[int, ...] = ()
    value: bytes = b""

    def with_change(self, writer: int, value: bytes) -> Acceptance:
        """What is to be proposed so that the key has this value."""
        writers = (*self.writers, writer)[-HISTORY:]
        return Acceptance(self.promised, self.accepted, self.version + 1, writers, value)

    def promise(self, ballot: Ballot) -> Acceptance | None:
        """The state after a promise to this ballot; None: refused."""
        if ballot < self.promised:
            return None
        return Acceptance(ballot, self.accepted, self.version, self.writers, self.value)

    def accept(self, ballot: Ballot, proposed: Acceptance) -> Acceptance | None:
        """The state after this ballot's proposal; None: refused."""
        if ballot < self.promised:
            return None
        return Acceptance(ballot, ballot, proposed.version, proposed.writers, proposed.value)

    def to_bytes(self) -> bytes:
        header = _HEADER.pack(*self.promised, *self.accepted, self.version, len(self.writers))
        return header + struct.pack(f"<{len(self.writers)}Q", *self.writers) + self.value

    @classmethod
    def from_bytes(cls, data: bytes) -> Acceptance:
        """`data` b"": of a store that has never heard of the key."""
        if not data:
            return cls()
        try:
            *numbers, version, count = _HEADER.unpack_from(data)
            writers = struct.unpack_from(f"<{count}Q", data, _HEADER.size)
        except struct.error as error:
            raise Internal(
                f"a store holds {len(data)} bytes that are not an acceptance ({error}): {data[:60]!r}. Use "
                "the same version of mariza-rabit for the launcher and all ranks."
            ) from error
        promised, accepted = Ballot(*numbers[:2]), Ballot(*numbers[2:])
        return cls(promised, accepted, version, writers, data[_HEADER.size + 8 * count :])
