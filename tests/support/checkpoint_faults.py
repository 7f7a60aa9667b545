"""Faults of checkpoints on a disk in memory: what dies or breaks where, and what must hold after it."""

from __future__ import annotations

import errno
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from support.crash_disk import CrashDisk, DiskOfRank, PowerLost
from support.thread_peers import ThreadPeers, run_threads

from rabit.checkpoint import Checkpoint, CheckpointFailed
from rabit.checkpoint.folder import Folder
from rabit.errors import PeerLost

FOLDER = Path("/checkpoints")
STEPS = 5
KEEP = 2


def state_at(step: int) -> dict[str, Any]:
    """What a job saves after `step`; some hundred bytes, of which every rank writes some."""
    chance = np.random.default_rng(step)
    return {f"tensor {n}": chance.integers(0, 256, 40 + n, np.uint8) for n in range(6)} | {"step": step}


def local_at(step: int, rank: int) -> dict[str, Any]:
    return {"random": np.random.default_rng([step, rank]).normal(size=3), "rank": rank}


def is_same(found: Any, wanted: Any) -> bool:
    return list(found) == list(wanted) and all(
        np.asarray(found[key]).tobytes() == np.asarray(wanted[key]).tobytes() for key in wanted
    )


@dataclass
class Died:
    """A job that was ended by a crash.

    operations: of the rank that was to die; dies_at beyond them means that it did not.
    acknowledged: the last step whose save has returned well on some rank.
    """

    disk: CrashDisk
    operations: int
    acknowledged: int


def die(size: int, rank: int, dies_at: int) -> Died:
    """Saves STEPS generations, and loses `rank` before its operation number `dies_at`."""
    disk = CrashDisk()
    done: list[int] = [0]
    views = [DiskOfRank(disk, dies_at=dies_at if each == rank else 0) for each in range(size)]

    def body(peers: ThreadPeers) -> None:
        checkpoint = Checkpoint(FOLDER, KEEP, peers=peers, files=views[peers.rank])
        for step in range(1, STEPS + 1):
            checkpoint.save(state_at(step), step=step, local=local_at(step, peers.rank))
            checkpoint.wait()
            done.append(step)

    for ended in run_threads(size, body):
        assert ended is None or isinstance(ended, (PowerLost, PeerLost)), repr(ended)
    return Died(disk, views[rank].operations, max(done))


def check_after(died: Died, survives: str, seed: int, size: int) -> None:
    """The next job, of `size` ranks, finds the newest generation, bit for bit, and continues."""
    disk = died.disk.after_crash(survives, seed)
    folder = Folder(FOLDER, DiskOfRank(disk))
    for number in folder.committed():  # Whatever counts is whole, also what was being removed.
        assert folder.problems(number) == []

    def body(peers: ThreadPeers) -> int:
        checkpoint = Checkpoint(FOLDER, KEEP, peers=peers, files=DiskOfRank(disk))
        found = checkpoint.restore()
        step = 0 if found is None else found.step
        if found is not None:
            assert is_same(found.state, state_at(step))
            if peers.rank < found.size:
                assert is_same(found.local, local_at(step, peers.rank))
        checkpoint.save(state_at(step + 1), step=step + 1)
        checkpoint.wait()
        again = checkpoint.restore()
        assert again is not None and again.step == step + 1
        assert is_same(again.state, state_at(step + 1))
        return step

    steps = run_threads(size, body)
    for each in steps:
        if isinstance(each, BaseException):
            raise each
    assert len(set(steps)) == 1
    assert died.acknowledged <= steps[0] <= died.acknowledged + 1, (steps, died.acknowledged)


def crash_points(size: int) -> list[tuple[int, int]]:
    """(rank, operation) of everything that a job does on disk, where it can die."""
    return [
        (rank, number)
        for rank in range(size)
        for number in range(1, die(size, rank, 0).operations + 1)
    ]


def fail(size: int, rank: int, fails_at: int, error: int) -> int:
    """A disk of `rank` that answers once with `error`: told on all ranks, and survived.

    Returns the number of operations of that rank.
    """
    disk = CrashDisk()
    views = [
        DiskOfRank(disk, fails_at=fails_at if each == rank else 0, error=error)
        for each in range(size)
    ]

    def body(peers: ThreadPeers) -> int:
        checkpoint = Checkpoint(FOLDER, KEEP, peers=peers, files=views[peers.rank])
        for step in range(1, STEPS + 1):
            checkpoint.save(state_at(step), step=step, local=local_at(step, peers.rank))
            try:
                checkpoint.wait()
            except CheckpointFailed as told:
                assert told.rank == rank and f"rank {rank} could not write" in str(told)
                assert errno.errorcode[error] in str(told)
                return step - 1
        return STEPS

    good = run_threads(size, body)
    for each in good:
        if isinstance(each, BaseException):
            raise each
    assert len(set(good)) == 1, good
    check_after(Died(disk, 0, int(good[0])), "all", 0, size)
    return views[rank].operations


def make_whole(size: int) -> CrashDisk:
    """A disk with two generations."""
    disk = CrashDisk()

    def body(peers: ThreadPeers) -> None:
        with Checkpoint(FOLDER, KEEP, peers=peers, files=DiskOfRank(disk)) as checkpoint:
            for step in (1, 2):
                checkpoint.save(state_at(step), step=step, local=local_at(step, peers.rank))

    assert run_threads(size, body) == [None] * size
    return disk


def damage(disk: CrashDisk, chance: random.Random) -> tuple[Path, bytes, str]:
    """Changes one file of the newest generation; the file, what it held, and what was done."""
    path = chance.choice(sorted(each for each in disk.names if each.parent.name.endswith("2")))
    content = disk.names[path].content
    before = bytes(content)
    kind = chance.choice(("flip", "flip", "flip", "cut", "longer", "swap"))
    at = chance.randrange(len(content))
    if kind == "flip":
        content[at] ^= 1 << chance.randrange(8)
    elif kind == "cut":
        del content[at:]
    elif kind == "longer":
        content += bytes(chance.randrange(1, 9))
    else:
        other = chance.randrange(len(content))
        content[at], content[other] = content[other], content[at]
    return path, before, f"{kind} at {at} of {path}"


def damages_detected(count: int, seed: int, every_restore: int = 50) -> int:
    """Damages a generation `count` times; returns how many changes were real.  All are found."""
    disk = make_whole(2)
    folder = Folder(FOLDER, DiskOfRank(disk))
    assert folder.problems(2) == []
    chance = random.Random(seed)
    real = 0
    for number in range(count):
        path, before, what = damage(disk, chance)
        if bytes(disk.names[path].content) != before:
            real += 1
            assert folder.problems(2), f"not detected: {what} (seed {seed}, number {number})"
            if number % every_restore == 0:
                _restores_the_one_before(disk)
        disk.names[path].content[:] = before
    return real


def _restores_the_one_before(disk: CrashDisk) -> None:
    def body(peers: ThreadPeers) -> Any:
        found = Checkpoint(FOLDER, KEEP, peers=peers, files=DiskOfRank(disk)).restore()
        return found is not None and found.step == 1 and is_same(found.state, state_at(1))

    assert run_threads(2, body) == [True, True]
