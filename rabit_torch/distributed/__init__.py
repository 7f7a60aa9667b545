"""torch.distributed on rabit: backend "rabit".

    import torch.distributed as dist
    import rabit_torch.distributed

    dist.init_process_group("rabit")

DistributedDataParallel, FSDP2 and what builds on them then run on rabit's engine.  Launch with
torchrun, rabitrun or mpirun; any init_method works.
"""

from __future__ import annotations

import warnings
import weakref
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, TCPStore

import rabit
from rabit_torch.distributed.rendezvous import watch_rendezvous

# The group's modules load with the first group: every program that imports rabit_torch makes the
# backend known, and few use it.
if TYPE_CHECKING:
    from rabit_torch.distributed.process_group import ProcessGroup
else:

    def __getattr__(name: str) -> Any:
        if name != "ProcessGroup":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from rabit_torch.distributed.process_group import ProcessGroup

        return ProcessGroup


__all__ = ["ProcessGroup", "monitored_barrier", "register"]

# The group that spans the job: groups with the same ranks share its engine.
_world: weakref.WeakValueDictionary[str, ProcessGroup] = weakref.WeakValueDictionary()
# How often a group of these ranks has been made in this process, equal on all of them.
_generations: Counter[tuple[str, tuple[int, ...]]] = Counter()


class _StoreBoard:
    """torch's store as the place where ranks meet."""

    def __init__(self, store: Any, timeout: timedelta) -> None:
        self._store = store
        self._timeout = timeout

    def set(self, key: str, value: str) -> None:
        self._store.set(key, value)

    def get(self, key: str) -> bytes:
        self._store.wait([key], self._timeout)
        return bytes(self._store.get(key))

    def host(self) -> str:
        """Where the ranks reach the store; empty for one in a file or in memory."""
        store = self._store
        while isinstance(store, PrefixStore):
            store = store.underlying_store
        return str(store.host) if isinstance(store, TCPStore) else ""


def _create(options: Any, backend_options: Any = None) -> ProcessGroup:
    """Makes a group; called by torch.distributed on the ranks of the group."""
    from rabit_torch.distributed.process_group import ProcessGroup

    _refuse_elastic()
    rank, size = options.group_rank, options.group_size
    shared = _engine_of_all(options)
    # torch gives a group that is made again the keys of the one before.
    made = (str(options.group_id), tuple(options.global_ranks_in_group))
    _generations[made] += 1
    store = PrefixStore(f"rabit.{_generations[made]}", options.store)
    engine = shared or rabit.connect(_StoreBoard(store, options.timeout), rank, size)
    group = ProcessGroup(
        engine, store, options.timeout, str(options.group_id), owns_engine=shared is None
    )
    if not options.global_ranks_in_group:
        _world["group"] = group
    return group


def _refuse_elastic() -> None:
    """Raises InvalidArgument in an elastic job, whose ranks change."""
    initialized = rabit.is_initialized()
    config = rabit.default_engine().config if initialized else rabit.Config.from_environ()
    if config.min_np == 0:
        return
    raise rabit.InvalidArgument(
        f"backend rabit of torch.distributed in an elastic job (--min-np {config.min_np}) on rank {config.rank}: "
        "a process group keeps its ranks as long as it lives. Use rabit_torch.DistributedOptimizer with "
        "rabit_torch.elastic; or restart from checkpoints, by rabitrun --max-restarts without --min-np, or "
        "by torchrun"
    )


def _engine_of_all(options: Any) -> rabit.Engine | None:
    """An engine that runs already and has exactly these ranks."""
    world = _world.get("group")
    ranks = list(options.global_ranks_in_group)
    if world is not None and not world._engine.is_closed and ranks:
        return world._engine if ranks == list(range(world.size())) else None
    if not ranks and rabit.is_initialized():
        engine = rabit.default_engine()
        if (engine.rank, engine.size) == (options.group_rank, options.group_size):
            return engine
    return None


def monitored_barrier(
    group: Any = None, timeout: timedelta | float | None = None, wait_all_ranks: bool = False
) -> None:
    """torch.distributed.monitored_barrier for a group on rabit, which torch reserves for gloo.

    timeout: a float counts as seconds, with a warning, as torch has it.
    """
    if isinstance(timeout, float):
        warnings.warn(
            f"monitored_barrier: timeout {timeout:g} counts as seconds. Pass a datetime.timedelta.", stacklevel=2
        )
    elif not isinstance(timeout, timedelta | None):
        raise TypeError(f"monitored_barrier: timeout is {timeout!r}. Pass a datetime.timedelta.")
    found: Any = dist.group.WORLD if group is None else group
    found.monitored_barrier(timeout, wait_all_ranks)


def register() -> None:
    """Makes the backend known to torch.distributed; importing this module has done it."""
    if not hasattr(dist.Backend, "RABIT"):
        watch_rendezvous()
        # Not is_available(), after which a process that is forked could not use CUDA.
        devices = ["cpu", "cuda"] if torch.cuda.device_count() else ["cpu"]
        dist.Backend.register_backend("rabit", _create, extended_api=True, devices=devices)


register()
