"""Checkpoint: saves the state of a job without stopping it, and finds the newest that is whole."""

from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rabit.checkpoint.commit import Commit, described
from rabit.checkpoint.errors import CheckpointDamaged, CheckpointFailed
from rabit.checkpoint.files import Files
from rabit.checkpoint.folder import Folder
from rabit.checkpoint.leaves import NUMPY_ADAPTER, Adapter
from rabit.checkpoint.loading import Loader
from rabit.checkpoint.manifest import Manifest, sha256_of
from rabit.checkpoint.peers import EnginePeers, Peers
from rabit.checkpoint.snapshot import Snapshots
from rabit.engine.current import current_engine
from rabit.engine.engine import Engine
from rabit.engine.process_set import ProcessSet, global_process_set
from rabit.errors import InvalidArgument
from rabit.printable import printable
from rabit.threads import Call

__all__ = ["Checkpoint", "Restored"]

OnError = Literal["raise", "warn"]


@dataclass(frozen=True)
class Restored:
    """What `Checkpoint.restore` found.

    step, state: as they were saved.  local: what this rank saved as local=, None for a rank that the
    saved job did not have.  size: ranks of the saved job.  skipped: newer generations that are not
    whole, with the reason.  local_of: the local state of any rank of the saved job, read when called.
    """

    step: int
    state: Any
    local: Any
    generation: int
    size: int
    skipped: tuple[str, ...]
    local_of: Callable[[int], Any] = field(repr=False)


class Checkpoint:
    """The checkpoints of a job in one folder, which all ranks share.  One per job and folder.

    From its first save on no other job can save there: rank 0 has a lock, until close() or the end of its process.

    folder: None: RABIT_CHECKPOINT, which `rabitrun --checkpoint` sets.
    keep: how many generations stay.  every: of how many steps one is due; see is_due().
    on_error: "raise": a save that failed is an error of the next save(), wait() or close(); "warn":
    it is reported on standard error, and training continues.
    allow_pickle: objects that are neither plain values nor tensors are pickled; loading them again
    runs code.
    Used by one thread.  `save` and `restore` are collective, on all ranks of `process_set`.
    """

    def __init__(
        self,
        folder: str | Path | None = None,
        keep: int = 3,
        *,
        every: int = 100,
        on_error: OnError = "raise",
        allow_pickle: bool = False,
        adapters: Sequence[Adapter] = (NUMPY_ADAPTER,),
        process_set: ProcessSet = global_process_set,
        engine: Engine | None = None,
        files: Files | None = None,
        peers: Peers | None = None,
    ) -> None:
        """adapters, files, peers: other kinds of tensors, disks and ranks; for packages and tests."""
        name, job = "checkpoint", ""
        if peers is None:
            found = engine or current_engine()
            name = found.next_name(name)
            folder = folder or found.config.checkpoint
            peers = EnginePeers(found, process_set)
            if found.config.min_np:  # Rank 0 may be another process after a loss, while the one that was it continues.
                job = sha256_of(found.config.secret)[:16]
            found.before_close(self._finish)
        _check(folder, keep, every, on_error)
        assert folder is not None
        self.folder = Path(folder)
        self.every = every
        self._on_error = on_error
        self._peers = peers
        self._name = f"rabit.{name}"
        self._store = Folder(self.folder, files)
        self._commit = Commit(self._store, peers, self._name, keep, job)
        self._snapshots = Snapshots(adapters, peers.rank, peers.size, allow_pickle)
        self._loader = Loader(self._store, adapters, peers.rank, peers.size, allow_pickle)
        self._writing: Call | None = None
        self._error: BaseException | None = None
        self._newest: int | None = None
        self._restores = 0

    def is_due(self, step: int) -> bool:
        """True after every `every` steps; the same on all ranks."""
        return step > 0 and step % self.every == 0

    def save(self, state: Any, *, step: int, local: Any = None) -> None:
        """Saves a generation in the background.

        state: equal on all ranks: tensors, numbers, text, None, and dictionaries, lists and tuples of
        them; each rank writes a part of its bytes.  Only its structure and plain values are compared.
        A tensor that is divided over the ranks is a Part.
        local: what is this rank's own: random numbers, its place in the data, residuals.
        Copies what this rank writes and returns; waits first for a save that still runs.
        Raises InvalidArgument for a value that cannot be saved, with its path; what the save before
        raised, see on_error.  Where it raises on some ranks, this save has failed for all of them.
        """
        self._save(step, lambda: (state, local))

    def _save(self, step: int, make: Callable[[], tuple[Any, Any]]) -> None:
        """`save` of the values that `make` gives: what it raises, the other ranks are told."""
        self.wait()
        try:
            share = self._snapshots.take(_checked(step), *make())
            self._writing = Call(functools.partial(self._run, share), "rabit.checkpoint")
        except Exception as error:
            self._error = self._commit.refuse(error)
            raise

    def wait(self) -> int | None:
        """Waits until nothing is being written; returns the newest generation of this object.

        None: it has written none.  Raises what the last save raised; see on_error.  Blocks.
        """
        if self._writing is not None:
            self._writing.result()  # It ends with the disk's answer, or with the engine that loses a rank.
            self._writing = None
        error, self._error = self._error, None
        if error is None:
            return self._newest
        if self._on_error == "warn" and isinstance(error, CheckpointFailed):
            if self._peers.rank == 0:
                print(f"rabit: {error}", file=sys.stderr)
            return self._newest
        raise error

    def close(self) -> None:
        """Waits for the save that runs, like `wait`; another job may write into the folder then.

        Not needed before the engine closes.
        """
        try:
            self.wait()
        finally:
            self._commit.close()

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def latest(self) -> int | None:
        """The newest generation that was committed, as this rank sees the folder; None: none."""
        return max(self._store.committed(), default=None)

    def restore(self) -> Restored | None:
        """The newest generation that is whole, the same on all ranks; None if there is none yet.

        Every byte that is read is checked.  One that is damaged anywhere is left out on all ranks,
        with a line on standard error.  Blocks.
        Raises CheckpointDamaged if there are generations and none of them is whole.  Where a rank cannot
        take one that is whole (a pickle that is not allowed, too little memory), it raises that, and the
        others CheckpointFailed.
        """
        self.wait()
        self._restores += 1
        name = f"{self._name}.restore.{self._restores}"
        skipped: list[str] = []
        for number in self._candidates(name, skipped):
            found = self._try(f"{name}.{number}", number, skipped)
            if found is not None:
                return self._told(found, skipped)
        if any("not finished" not in reason for reason in skipped):
            raise CheckpointDamaged(
                f"checkpoint: no generation in {self.folder} is whole: {'; '.join(skipped)}. Put a copy "
                "there, or choose another folder to start again."
            )
        return None

    def _candidates(self, name: str, skipped: list[str]) -> list[int]:
        """The generations to try, the newest first, as rank 0 sees them."""
        numbers: list[int] = []
        whole: list[int] = []
        error = ""
        if self._peers.rank == 0:
            try:
                numbers, whole = self._store.numbers(), self._store.committed()
            except Exception as failure:  # Whatever it is, the others wait.
                error = described(failure, self.folder)
        said = self._peers.gather(name, [numbers, whole, error])[0]
        if said[2]:
            raise CheckpointDamaged(f"checkpoint: rank 0 cannot read {said[2]}.", 0)
        newest = max(said[1], default=0)
        skipped += [f"generation {answer} was not finished" for answer in said[0] if answer > newest]
        return list(reversed(said[1]))

    def _try(self, name: str, number: int, skipped: list[str]) -> Restored | None:
        manifest: Manifest | None = None
        found, error = None, ""
        failed: Exception | None = None
        try:
            manifest = self._store.manifest(number)
            found = self._loader.load(manifest)
        except (CheckpointDamaged, OSError) as damage:
            error = str(damage)
        except Exception as failure:  # Whatever it is, the others wait.
            failed = failure
        key = "" if manifest is None else f"{manifest.saved_at} {manifest.step} {manifest.size}"
        said = self._peers.gather(name, [error, key, _text_of(failed)])
        bad = [(rank, text) for rank, (text, _, _) in enumerate(said) if text]
        if not bad:
            _raise_together(failed, [answer[2] for answer in said], f"restore generation {number}")
        if not bad and any(answer[1] != said[0][1] for answer in said):
            bad = [(0, f"ranks see different files in {self.folder}")]
        if bad:
            rank, text = bad[0]
            skipped.append(f"generation {number} is left out, as rank {rank} found: {text}")
            return None
        assert manifest is not None and found is not None
        state, local = found
        return Restored(
            manifest.step, state, local, number, manifest.size, (),
            lambda rank: self._loader.local(manifest, rank),
        )  # fmt: skip

    def _together(self, what: str, action: Callable[[], None]) -> None:
        """Runs `action` on all ranks.  Where it raises on some of them, the others raise CheckpointFailed."""
        self._restores += 1
        failed: Exception | None = None
        try:
            action()
        except Exception as failure:  # Whatever it is, the others wait.
            failed = failure
        said = self._peers.gather(f"{self._name}.restore.{self._restores}", _text_of(failed))
        _raise_together(failed, said, what)

    def _told(self, found: Restored, skipped: Sequence[str]) -> Restored:
        if self._peers.rank == 0:
            for reason in skipped:
                print(f"rabit: checkpoint: {printable(reason)}", file=sys.stderr)
        return Restored(**{**vars(found), "skipped": tuple(skipped)})

    def _run(self, share: Any) -> None:
        try:
            self._newest = self._commit.run(share)
        except BaseException as error:  # It belongs to the thread that saves, which asks for it.
            self._error = error

    def _finish(self) -> None:
        """The engine is about to close: what was begun is finished first."""
        self.close()


def _text_of(failed: Exception | None) -> str:
    return "" if failed is None else f"{type(failed).__name__}: {failed}"


def _raise_together(failed: Exception | None, said: Sequence[str], what: str) -> None:
    """Raises what has failed here, or CheckpointFailed for what another rank has said."""
    if failed is not None:
        raise failed
    for rank, text in enumerate(said):
        if text:
            raise CheckpointFailed(f"checkpoint: rank {rank} could not {what}: {text}", rank)


def _checked(step: Any) -> int:
    try:
        number = -1 if isinstance(step, bool) else operator.index(step)
    except TypeError:
        number = -1
    if number < 0:
        raise InvalidArgument(f"checkpoint: step is {step!r}: expected an integer, 0 or more.")
    return number


def _check(folder: str | Path | None, keep: int, every: int, on_error: str) -> None:
    if not folder:
        raise InvalidArgument(
            "Checkpoint() has no folder: start the job with 'rabitrun --checkpoint DIR', set "
            "RABIT_CHECKPOINT, or pass one. All ranks must see it."
        )
    for name, value in (("keep", keep), ("every", every)):
        if not isinstance(value, int) or value < 1:
            raise InvalidArgument(f"Checkpoint({name}={value!r}): expected an integer, at least 1.")
    if on_error not in ("raise", "warn"):
        raise InvalidArgument(f"Checkpoint(on_error={on_error!r}): expected 'raise' or 'warn'.")
