"""LoadBalancingDistributedSampler: ranks take samples of like cost at the same time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from rabit.errors import InvalidArgument
from rabit.session import rank as rank_of_job
from rabit.session import size as size_of_job

__all__ = ["LoadBalancingDistributedSampler"]


class LoadBalancingDistributedSampler:
    """Deals samples so that all ranks work on samples of like complexity in the same step.

    Samples are sorted by complexity and cut into chunks of one sample for each rank; the chunks come in an
    order that depends on `seed` and the epoch alone.  A step then waits for a sample that costs little
    more than the others of its chunk, where dealing at random makes it wait for the costliest of all.

    dataset: has a length and, if complexity_fn is a function, samples by index.
    complexity_fn: a number for a sample, such as its length: called once for each sample, here, on every rank.
    Or the numbers themselves, one for each sample, where they are known.
    num_replicas, rank: None: those of the job.
    shuffle: chunks in another order in every epoch; else from the simplest to the most complex.
    drop_last: of a data set that the ranks do not divide, some samples are left out; else some come
    twice.  With `shuffle` these are others in every epoch, else the last, or the first, of the data set.
    random_level: from 0 to 1: complexities get noise as wide as this share of their range, so that
    chunks are not the same in every epoch.  At 1 little is left of the order.

    Iterating gives the indices of this rank.  Blocks nowhere: ranks compute the same order.
    Raises InvalidArgument for complexities that are not finite or not as many as the samples.
    """

    def __init__(
        self,
        dataset: Any,
        complexity_fn: Callable[[Any], float] | Sequence[float] | np.ndarray,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        random_level: float = 0.0,
    ) -> None:
        self.num_replicas = size_of_job() if num_replicas is None else num_replicas
        self.rank = rank_of_job() if rank is None else rank
        if not 0 <= self.rank < self.num_replicas:
            raise InvalidArgument(
                f"rank is {self.rank} and num_replicas {self.num_replicas}; give a rank from 0 to "
                "num_replicas - 1, or neither, inside a job."
            )
        if not 0 <= random_level <= 1:
            raise InvalidArgument(
                f"random_level is {random_level}; give a share of the range of complexities, from 0 to 1."
            )
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.drop_last = drop_last
        self.random_level = random_level
        self.epoch = 0
        self._complexities = _complexities(dataset, complexity_fn)
        count = len(self._complexities)
        chunks = count // self.num_replicas if drop_last else -(-count // self.num_replicas)
        self._chunks = chunks

    def set_epoch(self, epoch: int) -> None:
        """Takes the order of another epoch; call it on all ranks before each."""
        self.epoch = epoch

    def shares(self) -> np.ndarray:
        """Indices of this epoch, a row for each step and a column for each rank."""
        random = np.random.default_rng((self.seed, self.epoch))
        taken = self._taken(random)
        cost = self._complexities[taken]
        if self.random_level > 0 and len(cost):
            width = (cost.max() - cost.min()) * self.random_level
            cost = cost + width * random.random(len(cost))
        # Equal complexities stay in the order of the data set, on every machine.
        chunks = taken[np.argsort(cost, kind="stable")].reshape(self._chunks, self.num_replicas)
        return random.permutation(chunks) if self.shuffle else chunks

    def _taken(self, random: np.random.Generator) -> np.ndarray:
        """The samples of this epoch, in the order of the data set: as many as the ranks divide."""
        count, wanted = len(self._complexities), self._chunks * self.num_replicas
        order = random.permutation(count) if self.shuffle else np.arange(count)
        found = order if wanted == count else np.resize(order, wanted)
        return np.sort(found) if self.shuffle else found

    def __iter__(self) -> Iterator[int]:
        return iter(self.shares()[:, self.rank].tolist())

    def __len__(self) -> int:
        return self._chunks


def _complexities(dataset: Any, given: Any) -> np.ndarray:
    count = len(dataset)
    if callable(given):
        given = [given(dataset[index]) for index in range(count)]
    found = np.asarray(given, np.float64)
    if found.shape != (count,):
        raise InvalidArgument(
            f"complexity_fn gives numbers of shape {found.shape} for {count} samples; give one number "
            "for each sample."
        )
    bad = np.flatnonzero(~np.isfinite(found))
    if len(bad):
        raise InvalidArgument(
            f"the complexity of sample {bad[0]} is {found[bad[0]]}, and {len(bad) - 1} others are not finite "
            "either; give a finite number for each sample."
        )
    return found
