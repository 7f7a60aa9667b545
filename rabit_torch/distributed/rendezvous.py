"""Ranks that wait for each other in torch's store, before any code of a group runs, say so to rabitrun."""

from __future__ import annotations

import datetime
import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import parse_qs, urlparse

import torch.distributed as dist

from rabit.framework import offer_board, process_environment, tell_met, watch_ending

__all__ = ["watch_rendezvous"]

_Handler = Callable[..., Iterator[tuple[Any, int, int]]]
# Their stores wait until all ranks have connected. A file does not: there ranks wait in rabit.connect.
_WAITING = ("env", "tcp")


class _AgentStore:
    """The store of torchrun's agents, as a board of rabit's: ranks of several hosts need no file with a secret."""

    def __init__(self, environ: Mapping[str, str], timeout: float) -> None:
        host, port = environ["MASTER_ADDR"], int(environ["MASTER_PORT"])
        limit = datetime.timedelta(seconds=timeout)
        store = dist.TCPStore(  # type: ignore[attr-defined]
            host, port, is_master=False, timeout=limit, wait_for_workers=False
        )
        # The agents keep their store when they start the ranks again.
        attempt = environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        self._store = dist.PrefixStore(  # type: ignore[attr-defined]
            f"rabit/{attempt}", store
        )

    def put(self, text: str) -> None:
        self._store.set("meeting", text)

    def take(self) -> str:
        return bytes(self._store.get("meeting")).decode()


def _agent_store(environ: Mapping[str, str], timeout: float) -> _AgentStore | None:
    if environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return None  # Nobody serves it before init_process_group.
    return _AgentStore(environ, timeout)


def watch_rendezvous() -> None:
    """From now on rabitrun learns of ranks that wait in `init_process_group` for all ranks of the job.

    It then ends a job in which one ends well without that call; the others would wait for half an hour.  Ranks of
    torchrun on several hosts meet in its store.
    """
    # `dist.rendezvous` is the function of that name, which hides its module.
    offer_board("torchrun", _agent_store)
    module = sys.modules[f"{dist.__name__}.rendezvous"]
    handlers: dict[str, _Handler] = module._rendezvous_handlers
    for scheme in _WAITING:
        handlers[scheme] = _watched(handlers[scheme])


def _watched(handler: _Handler) -> _Handler:
    @functools.wraps(handler)
    def meet(url: str, *args: Any, **kwargs: Any) -> Iterator[tuple[Any, int, int]]:
        found = handler(url, *args, **kwargs)
        environ = process_environment()
        if not _awaits_all(url, environ):
            yield from found
            return
        watch_ending(int(environ["RABIT_RANK"]), environ)
        met = next(found)
        tell_met()
        yield met
        yield from found

    return meet


def _awaits_all(url: str, environ: Mapping[str, str]) -> bool:
    """True if the store at `url` waits for all ranks of rabitrun's job."""
    given = parse_qs(urlparse(url).query).get("world_size", [environ.get("WORLD_SIZE", "")])
    return given[0] == environ.get("RABIT_SIZE")
