"""Boards that frameworks offer: by launcher, a function that makes one; see rabit.rendezvous.boards."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

__all__ = ["Board", "offer_board", "offered_board"]


class Board(Protocol):
    """One text from rank 0 to all others, once."""

    def put(self, text: str) -> None:
        """Leaves the text; rank 0 alone.  May block until the other ranks have come."""

    def take(self) -> str:
        """The text; any other rank.  Blocks; raises TimedOut."""


_offered: dict[str, Callable[[Mapping[str, str], float], Board | None]] = {}


def offer_board(
    launcher: str, make: Callable[[Mapping[str, str], float], Board | None]
) -> None:
    """A framework serves a board under this launcher.  make: from the environment and a time limit; None: not now."""
    _offered[launcher] = make


def offered_board(launcher: str, environ: Mapping[str, str], timeout: float) -> Board | None:
    """The board that is offered under this launcher, if any."""
    make = _offered.get(launcher)
    return None if make is None else make(environ, timeout)
