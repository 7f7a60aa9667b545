"""CacheFile: one connection to the file of a cache: a table of pickled samples in SQLite."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
import warnings
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rabit.errors import InvalidArgument, Unsupported

if TYPE_CHECKING:
    import sqlite3

__all__ = ["CacheFile"]

FORMAT = 1
WAIT_SECONDS = 2.0  # for others that write; readers wait for no one

# With a log, readers do not wait for writers, nor these for the disk.
_TABLES = f"""
PRAGMA journal_mode = WAL;
CREATE TABLE samples (
  name TEXT NOT NULL, key NOT NULL, check_sum INTEGER NOT NULL, data BLOB NOT NULL, UNIQUE (name, key)
);
CREATE TABLE total (bytes INTEGER NOT NULL);
INSERT INTO total VALUES (0);
PRAGMA user_version = {FORMAT};
"""


class CacheFile:
    """A connection to `folder`/samples.sqlite; of one thread of one process.

    Samples are never changed and never removed.  is_full: a sample did not fit.
    """

    def __init__(self, folder: Path, capacity_bytes: int) -> None:
        self._path = folder / "samples.sqlite"
        self._capacity_bytes = capacity_bytes
        self.is_full = False
        _make_private(folder)
        with self._failures_are_told():
            if not self._path.exists():
                _put_empty(self._path)
            self._connection = self._connect()

    def read(self, name: str, key: int | str) -> bytes | None:
        """The pickle of a sample, None: it is not there."""
        with self._failures_are_told():
            row = self._connection.execute(
                "SELECT check_sum, data FROM samples WHERE name = ? AND key = ?", (name, key)
            ).fetchone()
        if row is None:
            return None
        data: bytes = row[1]
        if zlib.crc32(data) != row[0]:
            raise self._damaged(f"sample {key!r} of '{name}' has another check sum than when written")
        return data

    def write(self, name: str, samples: Mapping[int | str, bytes]) -> int:
        """Keeps the samples that fit; how many are left out."""
        if not samples:
            return 0
        sqlite = _sqlite()
        try:
            return self._write(name, samples)
        except sqlite.OperationalError as error:  # Another process writes and writes, or the disk is full.
            self._connection.rollback()
            warnings.warn(
                f"the cache {self._path} could not be written ({error}); {len(samples)} samples of '{name}' are "
                "made again when they are needed.",
                RuntimeWarning,
                stacklevel=3,
            )
            return len(samples)

    def count(self) -> int:
        """How many samples there are, of all names."""
        with self._failures_are_told():
            return int(self._connection.execute("SELECT COUNT(*) FROM samples").fetchone()[0])

    def close(self) -> None:
        self._connection.close()

    def _write(self, name: str, samples: Mapping[int | str, bytes]) -> int:
        run, left_out = self._connection.execute, 0
        with self._damage_is_told():
            run("BEGIN IMMEDIATE")
            used = run("SELECT bytes FROM total").fetchone()[0]
            for key, data in samples.items():
                if self._has(name, key):  # Another rank has made it as well.
                    continue
                if used + len(data) > self._capacity_bytes:
                    self.is_full = True
                    left_out += 1
                    continue
                row = (name, key, zlib.crc32(data), data)
                run("INSERT INTO samples VALUES (?, ?, ?, ?)", row)
                used += len(data)
            run("UPDATE total SET bytes = ?", (used,))
            run("COMMIT")
        return left_out

    def _has(self, name: str, key: int | str) -> bool:
        found = self._connection.execute(
            "SELECT 1 FROM samples WHERE name = ? AND key = ?", (name, key)
        )
        return found.fetchone() is not None

    def _connect(self) -> sqlite3.Connection:
        made: sqlite3.Connection = _sqlite().connect(
            self._path, timeout=WAIT_SECONDS, isolation_level=None, check_same_thread=False
        )
        try:
            version = made.execute("PRAGMA user_version").fetchone()[0]
            if version != FORMAT:
                raise self._damaged(f"its format is {version}, and {FORMAT} is known here")
            made.execute("PRAGMA synchronous = NORMAL")
        except BaseException:
            made.close()
            raise
        return made

    @contextlib.contextmanager
    def _failures_are_told(self) -> Iterator[None]:
        """Of what does not write: `write` leaves samples out where the disk fails."""
        try:
            with self._damage_is_told():
                yield
        except _sqlite().OperationalError as error:
            raise InvalidArgument(
                f"the cache {self._path} cannot be read: {error}. Look at its disk and its permissions, or name "
                "another folder."
            ) from error

    @contextlib.contextmanager
    def _damage_is_told(self) -> Iterator[None]:
        sqlite = _sqlite()
        try:
            yield
        except sqlite.OperationalError:
            raise
        except sqlite.DatabaseError as error:
            raise self._damaged(str(error)) from error

    def _damaged(self, why: str) -> InvalidArgument:
        return InvalidArgument(
            f"the cache {self._path} cannot be used: {why}. Delete it, and samples are made again."
        )


def _make_private(folder: Path) -> None:
    """What is in it is unpickled, which runs code: no one else may have put it there."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise InvalidArgument(
            f"the cache folder {folder} belongs to user {found.st_uid} with mode {stat.S_IMODE(found.st_mode):o}: "
            f"others than user {os.geteuid()} may write to it, and what is read there runs as code. Name a folder of "
            "your own, or take the right to write from others (chmod go-w)."
        )


def _put_empty(path: Path) -> None:
    """Processes that begin at the same time find no file or a whole one, and one of theirs stays."""
    descriptor, new = tempfile.mkstemp(dir=path.parent, suffix=".new")  # for this user alone
    os.close(descriptor)
    try:
        made = _sqlite().connect(new)
        try:
            made.executescript(_TABLES)
        finally:
            made.close()
        with contextlib.suppress(FileExistsError):
            os.link(new, path)
    finally:
        Path(new).unlink()


def _sqlite() -> Any:
    try:
        import sqlite3
    except ImportError as error:
        raise Unsupported(
            f"this Python has no module sqlite3, in which samples are cached ({error}). Install the package of "
            "your system for it (python3-sqlite3, libsqlite3), or use the data set without a cache."
        ) from error
    return sqlite3
