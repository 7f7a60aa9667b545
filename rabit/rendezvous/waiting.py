"""Which ranks init() waits for, for a user who sees nothing happen."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator

from rabit.config.config import Config
from rabit.errors import RabitError
from rabit.threads import start_thread

__all__ = ["says_after_a_while", "whom_it_waits_for"]

_AFTER_S = 5.0
_ANSWER_S = 2.0
_SHOWN_MAX = 8


@contextlib.contextmanager
def says_after_a_while(describe: Callable[[], str]) -> Iterator[threading.Thread]:
    """When the block has taken 5 s, the user gets one line, of what `describe` gives; "": none.

    Gives the thread that does it.
    """
    is_over = threading.Event()

    def wait() -> None:
        if is_over.wait(_AFTER_S):
            return
        text = describe()
        if text and not is_over.is_set():
            print(f"rabit: {text}", file=sys.stderr, flush=True)

    thread = start_thread(wait, "rabit-init")
    try:
        yield thread
    finally:
        is_over.set()


def whom_it_waits_for(config: Config, epoch: int) -> str:
    """Which ranks have not come to the store, said by the first rank that has.  Blocks for a while."""
    # Most processes need no client of their own.
    from rabit.rendezvous.store_client import StoreClient

    rank, address = config.rank, config.store_address
    here = f"rank {rank} of {config.size} waits in init()"
    try:
        with contextlib.closing(
            StoreClient(
                address,
                config.secret or b"",
                rank=rank,
                timeout=_ANSWER_S,
                library_path=config.library,
            )
        ) as store:
            # As native/abi/connections.cc has them.
            kinds = ("member/host", f"{epoch}/host")
            own, other = kinds if config.min_np else reversed(kinds)
            # One rank alone asks for all: together they would ask for the square of them.
            if any(store.told(f"{own}/{lower}") is not None for lower in range(rank)):
                return ""
            others = [peer for peer in range(rank, config.size) if store.told(f"{own}/{peer}") is None]
            missing = [*range(rank), *others]
            if not missing or rank in missing:
                return ""
            strange = [rank for rank in missing if store.told(f"{other}/{rank}") is not None]
    except RabitError:
        return (
            f"{here} for the store of the job at {address}, which does not answer. It is on the host of rabitrun, or "
            "of rank 0 under another launcher: that one has not started, or is not reached at this address."
        )
    shown = ", ".join(map(str, missing[:_SHOWN_MAX])) + (", …" if len(missing) > _SHOWN_MAX else "")
    who = f"rank {shown}" if len(missing) == 1 else f"ranks {shown}"
    if strange:
        return (
            f"{here} for {who}: RABIT_MIN_NP is {config.min_np} here, and on rank {strange[0]} it "
            f"{'is not set' if config.min_np else 'is set'}. rabitrun --min-np sets it for all ranks alike."
        )
    verb = "has" if len(missing) == 1 else "have"
    return f"{here} for {who}, which {verb} not come to {address} yet."
