"""LoadBalancingDistributedBatchSampler: batches of any size, and as many on every rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rabit.data.balanced_sampler import LoadBalancingDistributedSampler
from rabit.errors import InvalidArgument

__all__ = ["LoadBalancingDistributedBatchSampler"]


class LoadBalancingDistributedBatchSampler:
    """Puts the indices of a balanced sampler into batches whose sizes a function chooses.

    sampler: whose complexities, ranks and epochs count.
    batch_fn: makes batches, lists of indices, of the indices of one rank, such as batches of as many words.
    It is called for every rank on every rank, and must give the same for the same indices.
    drop_last: all ranks take as many batches as the one that has fewest; else as many as the one that has
    most, and those that have fewer take their first ones again.

    Iterating gives lists of indices.  A rank that had fewer steps than others would make them wait forever.
    Raises InvalidArgument if a rank gets no batch while others do, without drop_last.
    """

    def __init__(
        self,
        sampler: LoadBalancingDistributedSampler,
        batch_fn: Callable[[list[int]], Sequence[Sequence[int]]],
        drop_last: bool = False,
    ) -> None:
        self.sampler = sampler
        self.batch_fn = batch_fn
        self.drop_last = drop_last
        self._made_for: tuple[int, int] | None = None  # epoch and rank
        self._batches: list[list[int]] = []

    def set_epoch(self, epoch: int) -> None:
        """As the sampler's."""
        self.sampler.set_epoch(epoch)

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self._of_this_epoch())

    def __len__(self) -> int:
        return len(self._of_this_epoch())

    def _of_this_epoch(self) -> list[list[int]]:
        now = (self.sampler.epoch, self.sampler.rank)
        if self._made_for != now:
            self._batches = self._make()
            self._made_for = now
        return self._batches

    def _make(self) -> list[list[int]]:
        shares = self.sampler.shares()
        batches = [self.batch_fn(column.tolist()) for column in shares.T]
        counts = [len(batch) for batch in batches]
        mine = [list(index) for index in batches[self.sampler.rank]]
        if self.drop_last:
            return mine[: min(counts)]
        if min(counts) == 0 and max(counts) > 0:
            raise InvalidArgument(
                f"batch_fn makes {counts} batches for ranks 0 to {len(counts) - 1} in epoch {self.sampler.epoch}; "
                "a rank without any has nothing to take again. Make smaller batches, or use drop_last."
            )
        return [mine[place % len(mine)] for place in range(max(counts))]
