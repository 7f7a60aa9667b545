"""Gradient methods in place of the reduce-scatter of FSDP2."""

from __future__ import annotations

import pytest
import torch
from frameworks.test_c10d import run

import rabit_torch as rabit
from rabit.testing import run_ranks

fsdp = pytest.importorskip("torch.distributed.fsdp")
can_replace = hasattr(getattr(fsdp, "FSDPModule", None), "set_custom_reduce_scatter")


@pytest.mark.skipif(not can_replace, reason="this torch lets nobody replace FSDP's reduce-scatter")
@pytest.mark.parametrize("ranks", [2, 3])
def test_a_sharded_model_trains_by_methods_to_the_bits_of_ddp(rank_server, ranks, monkeypatch):
    # Three summands: a sum over all and one that scatters its result may take them in different orders.
    monkeypatch.setenv("RABIT_DETERMINISTIC", "1")
    run(rank_server, ranks, "c10d_fsdp_method.py")


def test_what_no_fsdp_can_do_is_refused():
    def on_rank(engine):
        model = torch.nn.Linear(2, 2)
        with pytest.raises(rabit.InvalidArgument, match="LocalSGD works on parameters in step"):
            rabit.FsdpMethod("local", model)
        with pytest.raises(rabit.InvalidArgument, match=r"Linear on rank 0 has no FSDP module\. Call fully"):
            rabit.FsdpMethod("mean", model)

    run_ranks(1, on_rank)
