"""Boards that frameworks offer: by launcher, a function that makes one; see rabit.rendezvous.boards."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rabit.rendezvous.boards import Board

__all__ = ["offer_board", "offered_board"]

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
