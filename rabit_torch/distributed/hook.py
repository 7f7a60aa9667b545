"""A communication hook for torch's DistributedDataParallel: its buckets travel through rabit."""

# No postponed annotations here: DDP compares those of a hook with its own classes.
from typing import Any

import torch
from torch._C._distributed_c10d import GradBucket

import rabit
from rabit import Average, ProcessSet, global_process_set
from rabit_torch.distributed.futures import completion_of, raise_after_backward
from rabit_torch.ops.collectives import allreduce_async_

__all__ = ["ddp_hook"]

# Which bucket is which: by the memory of its first parameter and its size.  Ranks meet their buckets
# in the same order, so the numbers agree, also with several models.
_numbers: dict[tuple[int, int], int] = {}


def ddp_hook(state: Any, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Averages a bucket over all ranks of the job; for `model.register_comm_hook(state, ddp_hook)`.

    state: None for all ranks; a ProcessSet with the ranks of DDP's own group; or a compression such
    as Compression.bf16.  Call rabit.init() first.
    """
    process_set = state if isinstance(state, ProcessSet) else global_process_set
    compression = state if isinstance(state, rabit.CompressionCodec) else rabit.Compression.none
    buffer: torch.Tensor = bucket.buffer()
    key = (bucket.parameters()[0].data_ptr(), buffer.numel())
    number = _numbers.setdefault(key, len(_numbers))
    handle = allreduce_async_(
        buffer, None, f"ddp.{number}", Average, process_set=process_set, compression=compression
    )
    open_ = handle.engine_handles
    completion = completion_of(rabit.default_engine())
    future: torch.futures.Future[torch.Tensor] = completion.future(open_, handle.wait)

    def wait() -> None:
        for each in open_:
            each.wait()

    raise_after_backward(wait)
    return future
