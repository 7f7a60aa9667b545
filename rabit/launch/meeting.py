"""Where the processes of a job meet: its stores, and the variables that name them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rabit.launch.job import Job
from rabit.launch.options.environment import base_environ
from rabit.launch.store import StorePlace, crowded, serve_store, serve_stores, store_places
from rabit.launch.torch_environ import master_environ

__all__ = ["Meeting", "meeting_of", "store_places_of"]


@dataclass(frozen=True)
class Meeting:
    """secret: of the job.  stores: their addresses; none for one rank that stays alone.  environ: for every rank."""

    secret: bytes
    stores: tuple[str, ...]
    environ: dict[str, str]


@contextlib.contextmanager
def meeting_of(
    job: Job, secret: bytes, say: Callable[[str], None], note: Callable[[str], None]
) -> Iterator[Meeting]:
    """Serves the stores of `job` until the block ends.  say, note: for --verbose, and always."""
    first = job.plan.hosts[0].host
    name = "" if first.is_here else first.name.rpartition("@")[2]
    with (
        _stores(job, secret, say, note) as stores,
        master_environ(name, job.store_host if first.is_here else "") as environ,
    ):
        # By it alone Lightning and Fabric know a launcher that has started the ranks.
        environ["TORCHELASTIC_RUN_ID"] = "rabitrun"
        if job.elastic is not None:
            environ["RABIT_MIN_NP"] = str(job.elastic.least)
        if job.grows is not None:
            environ["RABIT_MAX_NP"] = str(job.grows.most)
        if stores:
            environ["RABIT_STORE_ADDRESS"] = stores[0]
        if len(stores) > 1:
            environ["RABIT_STORE_ADDRESSES"] = ",".join(stores)
        yield Meeting(secret, tuple(stores), environ)


@contextlib.contextmanager
def _stores(
    job: Job, secret: bytes, say: Callable[[str], None], note: Callable[[str], None]
) -> Iterator[list[str]]:
    if not job.store_host:
        yield []
        return
    if job.elastic is None or job.elastic.stores == 1:
        with serve_store(job.store_host, secret) as address:
            say(f"the store listens on {address}")
            yield [address]
        return
    places = store_places_of(job)
    if risk := crowded(places):
        note(risk)
    with serve_stores(places, job.store_host, job.interfaces, secret, job.start_s) as found:
        for place, address in zip(places, found, strict=True):
            say(f"a store of {len(found)} listens on {place.host}, {address}")
        yield found


def store_places_of(job: Job) -> list[StorePlace]:
    """Where the stores run that are to outlive this process."""
    assert job.elastic is not None
    ways = [(host, job.starts_here(host)) for host in job.hosts]
    return store_places(job.elastic.stores, ways, job.ssh, base_environ(job.environ))
