"""Any-batch training: in a step each rank does what it manages."""

from __future__ import annotations

import numpy as np

from rabit.training.strategy import Ranks, Slot, Strategy

__all__ = ["AnyBatch"]


class AnyBatch(Strategy):
    """x' = Σ_i g_i / Σ_i b_i, where g_i is a sum over the b_i samples that rank i has managed.

    The same as one step on the union of the samples.  The data loop sets `samples` before the backward
    pass ends, and takes the gradient of the sum of the losses, not of their mean; 0 samples count 0.
    State: none.
    Source: Ferdinand et al., "Anytime Minibatch", 2019; Eshraghi and Liang, "Distributed Online
    Optimization over a Heterogeneous Network with Any-Batch Mirror Descent", 2020.
    """

    own_of_rank = ("samples",)

    def __init__(self) -> None:
        self.samples = 0

    async def gradient(self, slot: Slot, ranks: Ranks) -> None:
        kind = slot.dtype.type
        both = await ranks.sum(np.append(slot.grad.reshape(-1), kind(self.samples)))
        total = both[-1] if both[-1] > 0 else kind(1)
        slot.grad = (both[:-1] / total).reshape(slot.shape)
