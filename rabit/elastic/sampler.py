"""ElasticSampler: which samples of an epoch this rank takes, whatever becomes of the others."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from typing import Any

import numpy as np

from rabit.session import rank, size

__all__ = ["ElasticSampler"]


class ElasticSampler:
    """Deals the samples of a data set to the ranks, and those that are left when the ranks change.

    dataset: anything that has a length.  shuffle: in an order that depends on `seed` and the epoch
    alone, equal on all ranks.  Every rank gets the same number of samples: the last ones may come
    twice.  Iterating gives indices.  Put it into the state of the job, and call `record_batch` before
    `commit`.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_num = 0  # samples of this epoch that all ranks together have had
        self.indices: list[int] = []  # of this rank, from here to the end of the epoch
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begins an epoch; call it at its end, for the next one, not at the start of a loop."""
        self.epoch = epoch
        self.processed_num = 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Every rank has had one more batch of `batch_size` samples; batch_idx is not used."""
        self.processed_num += batch_size * size()

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.epoch = state_dict["epoch"]
        self.processed_num = state_dict["processed_num"]
        self.reset()

    def reset(self) -> None:
        """Deals the samples that are left to the ranks that there are."""
        count = len(self.dataset)
        order = np.arange(count)
        if self.shuffle:
            np.random.default_rng((self.seed, self.epoch)).shuffle(order)
        left = order[self.processed_num :]
        share = -(-len(left) // size())
        self.indices = np.resize(left, share * size())[rank() :: size()].tolist()

    def __iter__(self) -> Iterator[int]:
        return iter(self.indices)

    def __len__(self) -> int:
        return len(self.indices)
