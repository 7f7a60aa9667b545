"""batches: a training loop that continues when ranks are lost or come, without a function around it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import TracebackType

from rabit.elastic.cadence import Cadence
from rabit.elastic.recovery import Recovery
from rabit.elastic.sampler import ElasticSampler
from rabit.elastic.state import State
from rabit.errors import InvalidArgument
from rabit.session import size

__all__ = ["Batch", "batches"]


class Batch:
    """The work on one batch: a block that may be committed at its end, and is repeated after a loss.

    As a context manager it gives the indices of this rank.
    """

    def __init__(
        self, rows: list[int], sampler: ElasticSampler, recovery: Recovery, end: Callable[[], None]
    ) -> None:
        self.rows = rows
        self._sampler = sampler
        self._recovery = recovery
        self._end = end
        self.was_used = False
        self.has_failed = False  # in a way that there is a way on from

    def __enter__(self) -> list[int]:
        self.was_used = True
        return self.rows

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if error is not None and not isinstance(error, Exception):
            return False
        try:
            if error is not None:
                raise error
            self._record()
            self._end()
        except Exception as failure:
            self._recovery.take(failure)
            self.has_failed = True
        return True

    def _record(self) -> None:
        sampler = self._sampler
        left = len(sampler.dataset) - sampler.processed_num
        sampler.record_batch(0, len(self.rows))
        if len(self.rows) * size() >= left:
            sampler.set_epoch(sampler.epoch + 1)


def batches(
    sampler: ElasticSampler,
    state: State,
    batch_size: int,
    epochs: int = 1,
    commit_every: int | None = None,
) -> Iterator[Batch]:
    """The batches of an elastic job, until the sampler has come to epoch `epochs`::

        state = rabit.elastic.ObjectState(sampler=sampler, weights=weights)
        for batch in rabit.elastic.batches(sampler, state, batch_size=32):
            with batch as rows:
                state.weights -= rabit.allreduce(gradient(rows), name="gradient")

    batch_size: indices of one rank; the last batch of an epoch may have fewer.  state: holds the sampler.
    commit_every: blocks; 1: the end of each is a commit.  None: the ranks commit each of the first eight, measure,
    and then commit as often as takes a thousandth of the time, at least every 30 s; see Cadence for what that costs.
    If ranks are lost inside of a block, on this rank or others, it is left where it is, the state goes back to
    the last commit, and the samples since then come again, dealt to the ranks that there are then: a `for` alone
    could not catch that.  Any other exception is raised.
    Every rank goes through all batches; leave the loop early on all of them or on none.  A loss that is found at the
    end of the last block is recovered from then as well, and the state is that of the last commit.
    """
    if batch_size < 1:
        raise InvalidArgument(f"batches: batch_size is {batch_size}: expected at least 1.")
    if all(value is not sampler for value in vars(state).values()):
        raise InvalidArgument(
            "batches: the state does not hold the sampler, so that a loss could not bring it back. Pass "
            "it to the state as well: ObjectState(sampler=sampler, …)."
        )
    if commit_every is not None and commit_every < 1:
        raise InvalidArgument(
            f"batches: commit_every is {commit_every}: expected at least 1, or None, which commits as often as it "
            "costs little."
        )
    return _batches(sampler, state, batch_size, epochs, Cadence(commit_every))


def _batches(
    sampler: ElasticSampler, state: State, batch_size: int, epochs: int, cadence: Cadence
) -> Iterator[Batch]:
    with Recovery(state) as recovery:
        is_ready = False
        begin = (0, 0)  # epoch and samples when the sampler has dealt what `indices` holds
        while True:
            try:
                if not is_ready:
                    recovery.prepare()
                    cadence.start_over()
                    is_ready, begin = True, (sampler.epoch, sampler.processed_num)
                if sampler.epoch >= epochs:
                    recovery.finish()
                    return
            except Exception as error:
                recovery.take(error)
                is_ready = False
                continue
            if sampler.epoch != begin[0]:
                begin = (sampler.epoch, 0)
            first = (sampler.processed_num - begin[1]) // size()
            rows = sampler.indices[first : first + batch_size]
            batch = Batch(rows, sampler, recovery, lambda: cadence.end_step(state.commit))
            try:
                yield batch
            except GeneratorExit:  # By `break`, after which nothing repeats what a loss has cost.
                while batch.has_failed:
                    batch.has_failed = not recovery.has_prepared()
                raise
            if not batch.was_used:
                raise InvalidArgument(
                    "batches: the loop has not entered its batch. Write 'with batch as rows:' around what "
                    "is done with it, so that it can be committed, or repeated after a loss."
                )
            is_ready = not batch.has_failed
