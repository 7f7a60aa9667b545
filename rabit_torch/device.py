"""Which device a rank uses."""

from __future__ import annotations

import torch

import rabit

__all__ = ["local_device"]


def local_device() -> torch.device:
    """The device of this rank: the CUDA device of its number on the host, or the CPU if there is none.

    With more ranks on a host than devices, ranks share: rank n of the host has device n % devices.  With
    RABIT_WAVES=2, ranks 2k and 2k + 1 are those that share one, as k alone would have it.  Where
    the launcher shows every rank one device of its own (CUDA_VISIBLE_DEVICES), that is `cuda:0`.  Call
    `torch.cuda.set_device(rabit.local_device())` if it is one of CUDA, so that torch uses it as well.
    Does not block.
    """
    if not torch.cuda.is_available():
        return torch.device("cpu")
    place = rabit.local_rank() // rabit.default_engine().config.waves
    return torch.device("cuda", place % torch.cuda.device_count())
