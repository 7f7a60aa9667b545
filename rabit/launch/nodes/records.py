"""HostRecords: the records of the ranks of one host, for whoever runs these ranks."""

from __future__ import annotations

import contextlib
import selectors
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rabit.config.config import process_environment
from rabit.errors import InvalidArgument
from rabit.launch.host_job import HostJob
from rabit.launch.nodes.mailbox import Mailbox
from rabit.launch.nodes.node import Events
from rabit.record.places import FOLDER_VARIABLE, own_folder, remove_folder
from rabit.record.reader import find_records, read_counters, read_record
from rabit.threads import start_thread

if TYPE_CHECKING:
    from rabit.diagnostics.metrics_server import MetricsServer

__all__ = ["HostRecords"]

_OFF = ("0", "off", "false", "no")
_ON = ("", "1", "on", "true", "yes")
_EVERY_S = 1.0
_TEXTFILE_EVERY = 5


class HostRecords:
    """One thread only, next to which it has one that looks at the ranks once a second.

    A private folder goes with the job if it ends well; after a failure it stays, for `rabitrun doctor FOLDER`.
    """

    def __init__(self, job: HostJob, events: Events, selector: selectors.BaseSelector) -> None:
        self._job = job
        self._events = events
        self._where = job.environ.get("RABIT_RECORD", "")
        self._is_on = self._where.lower() not in _OFF
        self._is_private = self._where.lower() in _ON
        self._folder: Path | None = None
        self._mailbox = Mailbox(selector) if self._is_on else None
        self._ends = threading.Event()
        self._pids: dict[int, int] = {}
        self._server: MetricsServer | None = None

    def environ(self) -> dict[str, str]:
        """Variables of the ranks; makes the folder."""
        if not self._is_on:
            return {}
        if not self._is_private:
            self._folder = Path(self._job.directory) / self._where
            return {}
        try:
            self._folder = Path(own_folder("records", process_environment()))
        except OSError:
            return {}  # No folder for temporary files: ranks look for one themselves.
        return {FOLDER_VARIABLE: str(self._folder)}

    @property
    def folder(self) -> str:
        return "" if self._folder is None else str(self._folder)

    def serve(self) -> None:
        """Serves metrics, if the job asks for it.  Raises InvalidArgument if the address cannot be used."""
        address = self._job.environ.get("RABIT_METRICS", "")
        # A newcomer to an elastic job has a node of its own, next to the one of its host that serves.
        if not address or not self._is_on or self._job.slots:
            return
        from rabit.diagnostics.metrics_server import MetricsServer, text_of

        self._server = MetricsServer(address, lambda: text_of(self._paths(), self._job.job))

    def started(self, rank: int, pid: int) -> None:
        """A rank runs; with the first one the thread begins."""
        is_first = not self._pids
        self._pids[rank] = pid
        if is_first and self._folder is not None:
            start_thread(self._watch, "records")

    def look(self, number: int, ask: dict[str, Any]) -> None:
        """Looks at the ranks in a thread; `Events.looked` follows, with `number`."""
        if self._mailbox is None:
            self._events.looked(self._job.host, number, {"host": {}, "ranks": {}, "off": True})
            return
        mailbox = self._mailbox

        def run() -> None:
            from rabit.diagnostics.look.look import look_at

            found = look_at(
                self._paths(),
                self._job.host,
                int(ask.get("stacks", 1)),
                float(ask.get("interval", 0.3)),
            )
            document = {**found, "folder": self.folder, "pids": dict(self._pids)}
            mailbox.put(lambda: self._events.looked(self._job.host, number, document))

        start_thread(run, "look")

    def ended(self, rank: int, is_well: bool) -> dict[str, Any]:
        """What the record of a rank says at its end; of one that ends well the counters alone."""
        from rabit.diagnostics.look.look import rank_document

        found = None
        for path in self._paths():
            record = self._read(path, is_well)
            if record is None or record.header.get("pid") != self._pids.get(rank):
                continue
            found = record
            if record.header.get("engine", 1) == 1:  # and not that of a group
                break
        if found is None:
            return {}
        return {**rank_document(found), "host": self._job.host, "folder": self.folder}

    @staticmethod
    def _read(path: Path, is_short: bool) -> Any:
        try:
            return (read_counters if is_short else read_record)(path)
        except InvalidArgument:
            return None  # It was made a moment ago.

    def _paths(self) -> list[Path]:
        if self._folder is None:
            return []
        try:
            return find_records(self._folder)
        except InvalidArgument:
            return []  # No rank has called init() yet.

    def _watch(self) -> None:
        """The thread: samples for the records, and a word when a stall is reported."""
        from rabit.diagnostics.look.sampler import Sampler

        sampler = Sampler()
        stalls: dict[str, int] = {}
        rounds = 0
        while not self._ends.wait(_EVERY_S):
            rounds += 1
            if rounds % _TEXTFILE_EVERY == 0:
                self._write_textfile()
            for path in self._paths():
                counters = sampler.sample(path, set(self._pids.values()))
                reports = counters.get("stall_reports", 0)
                if reports > stalls.get(str(path), 0):
                    self._say_stalled(int(counters.get("rank", -1)))
                stalls[str(path)] = reports
        sampler.close()

    def _write_textfile(self) -> None:
        folder = self._job.environ.get("RABIT_METRICS_TEXTFILE", "")
        if not folder or self._job.slots:
            return
        from rabit.diagnostics.metrics_server import text_of, write_textfile

        # A folder that takes none now may take the next; numbers that grow old are seen as such.
        with contextlib.suppress(OSError):
            write_textfile(Path(folder), self._job.job, text_of(self._paths(), self._job.job))

    def _say_stalled(self, rank: int) -> None:
        if self._mailbox is not None:
            self._mailbox.put(lambda: self._events.stalled(rank))

    def finish(self, is_well: bool) -> None:
        """After the last rank has ended."""
        self._ends.set()
        if self._server is not None:
            self._server.close()
        if self._mailbox is not None:
            self._mailbox.close()
        if self._folder is not None and self._is_private and is_well:
            remove_folder(str(self._folder))
