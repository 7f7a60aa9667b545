"""Way: the program that starts an agent on another host."""

from __future__ import annotations

from typing import Protocol

from rabit.launch.hosts import Host

__all__ = ["AGENT", "Way"]

AGENT = "rabit.launch.nodes.agent"


class Way(Protocol):
    """How other hosts are reached.  is_always: this machine is reached so as well."""

    @property
    def program(self) -> str:
        """Its name, for the user."""

    @property
    def python(self) -> str:
        """The interpreter over there; "": that of the same path as here."""

    @property
    def is_always(self) -> bool:
        """True if ranks of this machine are started so too."""

    def command(self, host: Host, python_path: str = "", module: str = AGENT) -> list[str]:
        """The argument list that starts the agent, or another module, on `host`.  Nothing secret is in it."""

    def by_hand(self, host: Host) -> str:
        """What a user types to see whether `host` answers."""

    def missing(self) -> str:
        """Why the program cannot be started here, and what to do; "": it is in PATH."""

    def explain(self, host: Host, said: str, status: int | None) -> str:
        """Why the ranks of `host` could not be started.  said: what the program wrote; status: how it ended."""
