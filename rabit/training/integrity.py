"""Guards against wrong numbers: gradients that are not finite, and replicas that have drifted apart.

Both end in the same error on all ranks, which names the rank and the tensor.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rabit.engine.process_set import ProcessSet, global_process_set
from rabit.errors import IntegrityError, InvalidArgument
from rabit.ops.collectives import allgather
from rabit.ops.objects import allgather_object
from rabit.ops.votes import Vote

if TYPE_CHECKING:
    from rabit.engine.engine import Engine

__all__ = ["FiniteGuard", "ReplicaCheck", "finite_mode", "first_not_finite"]

# With "sample", each step checks one of this many tensors, in rotation.
SAMPLES = 16
_DIGEST_BYTES = 16


def finite_mode(value: bool | str | None, configured: str) -> str:
    """ "off", "all" or "sample", of an argument check_finite; None: as configured."""
    if value is None:
        return configured
    mode = {True: "all", False: "off"}.get(value, value) if isinstance(value, bool) else value
    if mode not in ("off", "all", "sample"):
        raise InvalidArgument(f"check_finite is {value!r}: expected True, False or 'sample'.")
    return str(mode)


def first_not_finite(array: np.ndarray[Any, Any]) -> tuple[tuple[int, ...], str] | None:
    """Index and value of the first element that is NaN or infinite; None if there is none."""
    # A sum is finite where all elements are, unless it overflows: then the elements tell.
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(array.sum()):
            return None
    bad = ~np.isfinite(array)
    if not bad.any():
        return None
    index = np.unravel_index(int(bad.argmax()), array.shape)
    return tuple(int(place) for place in index), str(array[index])


class FiniteGuard:
    """Looks at gradients of this rank before they are combined; all ranks learn whose is bad.

    One vote for each step.  Called in turns, like the optimizer that it belongs to.
    """

    def __init__(self, mode: str, name: str, engine: Engine, process_set: ProcessSet) -> None:
        self._samples = SAMPLES if mode == "sample" else 1
        self._name = f"{name}.finite"
        self._engine = engine
        self._process_set = process_set
        self._step = 0
        self._found: tuple[str, tuple[int, ...], str] | None = None

    def wants(self, number: int) -> bool:
        """True if tensor `number` is to be looked at in this step."""
        return self._found is None and (number + self._step) % self._samples == 0

    def note(self, tensor: str, index: tuple[int, ...], value: str) -> None:
        """This rank's gradient `tensor` is not finite."""
        self._found = self._found or (tensor, index, value)

    def forget(self) -> None:
        """The gradients so far are dropped."""
        self._found = None

    def check(self) -> None:
        """Before the optimizer steps.  Blocks until every rank has called it.

        Raises IntegrityError on all ranks if one of them has noted something.
        """
        self._step += 1
        found, self._found = self._found, None
        vote = Vote(int(found is not None), self._name, self._process_set, engine=self._engine)
        if not vote.wait():
            return
        ranks = self._process_set.ranks or range(self._engine.size)
        said = allgather_object(found, f"{self._name}.who", self._process_set, engine=self._engine)
        bad = [(rank, each) for rank, each in zip(ranks, said, strict=True) if each is not None]
        rank, (tensor, index, value) = bad[0]
        others = f" So has rank {', '.join(str(each) for each, _ in bad[1:])}." if bad[1:] else ""
        raise IntegrityError(
            f"gradient '{tensor}' of rank {rank} has {value} at index {index} in step {self._step}, before "
            f"it was combined with those of the other ranks.{others} No parameter was updated. Look at "
            "that rank's batch and loss, or lower the learning rate.",
            rank,
        )


class ReplicaCheck:
    """Compares the parameters of all ranks, bit by bit, after every `every` steps."""

    def __init__(
        self, every: int, name: str, engine: Engine, process_set: ProcessSet = global_process_set
    ) -> None:
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise InvalidArgument(f"check_replicas is {every!r}: expected a number of steps, 0 or more.")
        self._every = every
        self._name = f"{name}.replicas"
        self._engine = engine
        self._process_set = process_set
        self._step = 0
        self._joins = 0
        self._since = 0  # steps since the last join(), before which ranks may have taken other numbers of steps

    def step(self, parameters: Callable[[], Iterable[tuple[str, Any]]]) -> None:
        """After a step of the optimizer; `parameters` gives names and contiguous memory when it is time.

        Raises IntegrityError on all ranks if the parameters differ.
        """
        self._step += 1
        if self._joins != self._engine.joins:
            self._joins, self._since = self._engine.joins, 0
        self._since += 1
        if self._since % self._every == 0:
            self._compare(parameters())

    def _compare(self, parameters: Iterable[tuple[str, Any]]) -> None:
        names, digests = [], []
        for name, data in parameters:  # One at a time: of a device each is a copy in the memory of the host.
            names.append(name)
            digests.append(hashlib.sha256(data).digest()[:_DIGEST_BYTES])
        root = np.frombuffer(hashlib.sha256(b"".join(digests)).digest(), np.uint8)
        roots = self._gather(root, "roots")
        if (roots == roots[0]).all():
            return
        mine = np.frombuffer(b"".join(digests), np.uint8)
        everything = self._gather(mine, "digests")
        ranks = list(self._process_set.ranks or range(self._engine.size))
        raise _difference(self._step, names, everything, ranks)

    def _gather(self, row: np.ndarray[Any, Any], what: str) -> np.ndarray[Any, Any]:
        found: np.ndarray[Any, Any] = allgather(
            row[None], f"{self._name}.{what}", self._process_set, engine=self._engine
        )
        return found


def _difference(
    step: int, names: Sequence[str], digests: np.ndarray[Any, Any], ranks: Sequence[int]
) -> IntegrityError:
    """Who differs from the majority, where there is one, and in which parameters."""
    odd: dict[int, list[str]] = {}
    split = []
    for number, name in enumerate(names):
        at = number * _DIGEST_BYTES
        column = [row[at : at + _DIGEST_BYTES].tobytes() for row in digests]
        (most, count), *rest = Counter(column).most_common()
        if rest and 2 * count <= len(column):
            split.append(name)
        for rank, value in zip(ranks, column, strict=True):
            if rest and 2 * count > len(column) and value != most:
                odd.setdefault(rank, []).append(name)
    what = [
        f"rank {rank} differs from the others in {_listed(differs)}" for rank, differs in odd.items()
    ]
    if split:
        what.append(f"ranks {_listed(list(map(str, ranks)))} differ in {_listed(split)}, and none is in the majority")
    return IntegrityError(
        f"replicas differ after step {step}: {'; '.join(what)}. A bit has flipped in memory, or a rank "
        "has changed its parameters by itself. Continue from a checkpoint, and test that host's memory.",
        next(iter(odd)) if len(odd) == 1 and not split else -1,
    )


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(map(repr, names[:5])) + more
