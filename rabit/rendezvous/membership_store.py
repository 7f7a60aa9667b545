"""membership_store: where the membership of an elastic job is held, by one store or by several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rabit.config.config import Config
from rabit.rendezvous.store_client import StoreClient

if TYPE_CHECKING:
    from rabit.rendezvous.replicated_store import ReplicatedStore

    MembershipStore = StoreClient | ReplicatedStore

__all__ = ["membership_store", "open_store", "store_addresses"]


def store_addresses(config: Config) -> list[str]:
    """Of all stores of the job; one, unless rabitrun was asked for more."""
    several = [part.strip() for part in config.store_addresses.split(",") if part.strip()]
    return several or [config.store_address]


def membership_store(config: Config, number: int) -> MembershipStore:
    """A client for process `number` of the job."""
    return open_store(
        store_addresses(config), config.secret, rank=number, library_path=config.library
    )


def open_store(
    addresses: Sequence[str], secret: bytes, *, rank: int = -1, library_path: str = ""
) -> MembershipStore:
    """A client of the store at the one address, or of those that hold their keys together.

    One store has to answer at once; of several none is asked yet.
    """
    if len(addresses) == 1:
        return StoreClient(addresses[0], secret, rank=rank, library_path=library_path)
    # Few jobs need it.
    from rabit.rendezvous.replicated_store import several_stores

    return several_stores(addresses, secret, rank, library_path)
