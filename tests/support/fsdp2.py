"""needs_fsdp2: for tests of FSDP2 on the CPU."""

from __future__ import annotations

import importlib

import pytest

__all__ = ["needs_fsdp2"]

try:
    is_there = hasattr(importlib.import_module("torch.distributed.fsdp"), "fully_shard")
except ImportError:
    is_there = False
needs_fsdp2 = pytest.mark.skipif(not is_there, reason="before torch 2.6 FSDP2 is for CUDA alone")
