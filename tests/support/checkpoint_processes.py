"""Checkpoints of real processes on a real disk: one of them is killed, or its disk fails, at any operation."""

from __future__ import annotations

import errno
import os
import signal
import socket
import tempfile
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from support.checkpoint_faults import KEEP, STEPS, is_same, local_at, state_at
from support.thread_peers import Room, ThreadPeers

from rabit.checkpoint import Checkpoint, CheckpointFailed
from rabit.checkpoint.files import Files
from rabit.errors import PeerLost

WAIT_S = 60.0
# Operations of the disk; what only reads changes nothing, and counts all the same.
OPERATIONS = (
    "make_folder", "create", "write", "sync", "close", "rename", "sync_folder", "remove", "remove_folder",
    "names", "size", "read", "lock",
)  # fmt: skip


class FaultyFiles(Files):
    """The files of this machine, up to operation number `at`: it is not done, and `fault` is called."""

    def __init__(self, at: int, fault: Callable[[], None]) -> None:
        self.operations = 0
        self._at = at
        self._fault = fault

    def __getattribute__(self, name: str) -> Any:
        if name in OPERATIONS:
            self.operations += 1
            if self.operations == self._at:
                self._fault()
        return super().__getattribute__(name)


class SocketPeers:
    """Implements rabit.checkpoint.peers.Peers for processes of one family: all tell rank 0, and it tells all."""

    def __init__(self, rank: int, ends: list[Connection]) -> None:
        """ends: of rank 0, one for each other rank; of another rank, the one to rank 0."""
        self.rank = rank
        self.size = 1 + len(ends) if rank == 0 else 2
        self._ends = ends

    def gather(self, name: str, said: Any) -> list[Any]:
        try:
            if self.rank:
                self._ends[0].send((name, said))
                return list(self._received(self._ends[0], name))
            found = [said, *(self._received(each, name) for each in self._ends)]
            for each in self._ends:
                each.send((name, found))
            return found
        except (EOFError, OSError) as error:
            raise PeerLost(f"{name}: a process has ended ({error!r})", 0) from error

    @staticmethod
    def _received(end: Connection, name: str) -> Any:
        if not end.poll(WAIT_S):
            raise PeerLost(f"{name}: a process is silent", 0)
        about, said = end.recv()
        assert about == name, (about, name)
        return said


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fail(error: int) -> Callable[[], None]:
    def fault() -> None:
        raise OSError(error, os.strerror(error))

    return fault


def run(folder: Path, rank: int, at: int, fault: Callable[[], None]) -> tuple[int, int, bool]:
    """Two processes save STEPS generations; the fault is at operation `at` of `rank`.

    Returns how many operations that rank has begun, the last step whose save ended well on a process,
    and whether the process was killed.
    """
    mine, its = socket.socketpair()
    links = [[Connection(mine.detach())], [Connection(its.detach())]]
    notes = [os.pipe() for _ in links]
    children = []
    for each in range(2):
        child = os.fork()
        if child == 0:
            _rank(folder, each, links, notes, at if each == rank else 0, fault)
        children.append(child)
    for link, (_, write_end) in zip(links, notes, strict=True):
        link[0].close()
        os.close(write_end)
    told = []
    for read_end, _ in notes:
        with os.fdopen(read_end, "rb") as file:
            told.append([[int(word) for word in line.split()] for line in file.read().splitlines()])
    statuses = [os.waitpid(child, 0)[1] for child in children]
    assert statuses[1 - rank] == 0, (statuses, told)
    was_killed = os.WIFSIGNALED(statuses[rank])
    assert was_killed or statuses[rank] == 0, (statuses, told)
    acknowledged = max((step for lines in told for step, _ in lines), default=0)
    return max((count for _, count in told[rank]), default=0), acknowledged, was_killed


def _rank(
    folder: Path,
    rank: int,
    links: list[list[Connection]],
    notes: list[tuple[int, int]],
    at: int,
    fault: Callable[[], None],
) -> None:
    """The life of one process; never returns."""
    status = 1
    try:
        links[1 - rank][0].close()
        os.close(notes[1 - rank][1])
        files = FaultyFiles(at, fault)
        checkpoint = Checkpoint(folder, KEEP, peers=SocketPeers(rank, links[rank]), files=files)
        for step in range(1, STEPS + 1):
            checkpoint.save(state_at(step), step=step, local=local_at(step, rank))
            try:
                checkpoint.wait()
            except CheckpointFailed as told:
                assert "could not write" in str(told)
                break
            os.write(notes[rank][1], b"%d %d\n" % (step, files.operations))
        status = 0
    except PeerLost:
        status = 0
    finally:
        os._exit(status)


def check_after(folder: Path, acknowledged: int) -> None:
    """The next job finds the newest generation, bit for bit, and continues."""
    checkpoint = Checkpoint(folder, KEEP, peers=ThreadPeers(Room(1), 0))
    found = checkpoint.restore()
    step = 0 if found is None else found.step
    assert acknowledged <= step <= acknowledged + 1, (acknowledged, step)
    if found is not None:
        assert is_same(found.state, state_at(step))
        assert all(is_same(found.local_of(rank), local_at(step, rank)) for rank in range(found.size))
    checkpoint.save(state_at(step + 1), step=step + 1)
    checkpoint.wait()
    again = checkpoint.restore()
    assert again is not None and is_same(again.state, state_at(step + 1))


def points() -> list[tuple[int, int]]:
    """(rank, operation) of everything that two processes do on disk."""
    found = []
    for rank in range(2):
        with tempfile.TemporaryDirectory() as name:
            operations, acknowledged, _ = run(Path(name), rank, 0, kill)
            assert acknowledged == STEPS
        found += [(rank, number) for number in range(1, operations + 1)]
    return found


def lose_at(rank: int, number: int) -> bool:
    """A process is killed before one of its operations; False if it has had fewer this time.

    Who comes second finds a folder that the other one has made.
    """
    with tempfile.TemporaryDirectory() as name:
        operations, acknowledged, was_killed = run(Path(name), rank, number, kill)
        assert was_killed or operations < number
        check_after(Path(name), acknowledged)
        return was_killed


def fail_at(rank: int, number: int, error: int = errno.ENOSPC) -> None:
    """The disk of a process answers one of its operations with an error."""
    with tempfile.TemporaryDirectory() as name:
        _, acknowledged, _ = run(Path(name), rank, number, fail(error))
        check_after(Path(name), acknowledged)
