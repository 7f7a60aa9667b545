"""A communication hook for torch's DistributedDataParallel: its buckets travel through rabit."""

# No postponed annotations here: DDP compares those of a hook with its own classes.
import itertools
from typing import Any

import torch
from torch._C._distributed_c10d import GradBucket
from torch.utils.weak import WeakIdKeyDictionary

import rabit
from rabit import Average, ProcessSet, global_process_set
from rabit_torch.distributed.ddp_method import DdpMethod
from rabit_torch.distributed.futures import future_of
from rabit_torch.ops.collectives import allreduce_async_

__all__ = ["ddp_hook"]

# Which bucket is which: by its first parameter, while that lives, and its size.  Ranks meet their
# buckets in the same order, so the numbers agree, also with several models; memory of a model that is
# gone may be used again on one rank only.
_numbers: Any = WeakIdKeyDictionary()
_counter = itertools.count()


def _number_of(bucket: GradBucket) -> int:
    by_count: dict[int, int] = _numbers.setdefault(bucket.parameters()[0], {})
    count = bucket.buffer().numel()
    if count not in by_count:
        by_count[count] = next(_counter)
    return by_count[count]


def ddp_hook(state: Any, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Averages a bucket over all ranks of the job; for `model.register_comm_hook(state, ddp_hook)`.

    state: None for all ranks; a ProcessSet with the ranks of DDP's own group; a compression such as
    Compression.bf16, or a DdpMethod.  Call rabit.init() first.
    bucket: from DDP.  Returns a future at once; DDP waits for it at the end of the backward pass.
    """
    if isinstance(state, DdpMethod):
        return state.start(bucket)
    process_set = state if isinstance(state, ProcessSet) else global_process_set
    compression = state if isinstance(state, rabit.CompressionCodec) else rabit.Compression.none
    buffer: torch.Tensor = bucket.buffer()
    number = _number_of(bucket)
    handle = allreduce_async_(
        buffer, None, f"ddp.{number}", Average, process_set=process_set, compression=compression
    )
    open_ = handle.engine_handles

    def wait() -> None:
        for each in open_:
            each.wait()

    future: torch.futures.Future[torch.Tensor] = future_of(
        rabit.default_engine(), open_, handle.wait, wait, buffer
    )
    return future
