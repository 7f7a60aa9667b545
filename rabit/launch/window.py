"""Window: through which `rabitrun doctor`, `stacks` and `top` see a job that runs.

It is a socket in the file system, in a folder that only this user may enter; the kernel says who connects, and
anybody else is turned away.  A request is one line of JSON, and so is the answer.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rabit.config.config import process_environment
from rabit.diagnostics.look.client import JOB_PREFIX
from rabit.launch.nodes.node import Node
from rabit.launch.roster import Roster
from rabit.record.places import private_root

__all__ = ["Window"]

_ANSWER_S = 2.0  # beyond the interval that is asked for
_LONGEST_REQUEST = 1 << 16
_FOLDERS_SHOWN_MAX = 4


@dataclass
class _Asked:
    """One request on its way through the nodes."""

    answer: Callable[[dict[str, Any]], None]
    waits_for: int
    until: float
    found: dict[str, Any] = field(default_factory=lambda: {"hosts": {}, "ranks": {}, "folders": {}})


class Window:
    """One thread only, that of the selector.

    nodes: of the job; the list grows with an elastic one.  note: tells the user what a stall report lacks.
    """

    def __init__(
        self,
        roster: Roster,
        nodes: Sequence[Node],
        selector: selectors.BaseSelector,
        size: int,
        note: Callable[[str], None],
        command: Sequence[str] = (),
    ) -> None:
        self._roster = roster
        self._nodes = nodes
        self._selector = selector
        self._size = size
        self._note = note
        self._command = list(command)
        self._asked: dict[int, _Asked] = {}
        self._next = 1
        self._last: dict[str, Any] = {}  # by rank, what the records of those that have ended said
        self._hosts: dict[str, Any] = {}
        self._said: list[str] = []  # of the last stall
        self._began = time.time()
        self._path: Path | None = None
        self._server: socket.socket | None = None
        self._clients: dict[int, tuple[socket.socket, bytearray]] = {}

    def open(self) -> None:
        """From now on the job can be seen; where there is no private folder it cannot."""
        with contextlib.suppress(OSError):
            path = Path(private_root(process_environment())) / f"{JOB_PREFIX}{os.getpid()}.sock"
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
            server = socket.socket(
                socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
            )
            try:
                server.bind(str(path))
                path.chmod(0o600)
                server.listen(8)
            except OSError:
                server.close()
                raise
            self._path, self._server = path, server
            self._selector.register(server, selectors.EVENT_READ, self._accept)

    def close(self) -> None:
        if self._server is None:
            return
        for descriptor in list(self._clients):
            self._drop(descriptor)
        self._selector.unregister(self._server)
        self._server.close()
        self._server = None
        if self._path is not None:
            with contextlib.suppress(OSError):
                self._path.unlink()

    # Events of nodes.

    def looked(self, host: str, number: int, document: Mapping[str, Any]) -> None:
        asked = self._asked.get(number)
        if asked is None:
            return
        asked.found["hosts"][host] = self._hosts[host] = dict(document.get("host", {}))
        asked.found["ranks"].update(document.get("ranks", {}))
        asked.found["folders"][host] = document.get("folder", "")
        if document.get("off"):
            asked.found["off"] = True
        asked.waits_for -= 1
        if asked.waits_for <= 0:
            self._finish(number)

    def last_seen(self, rank: int, document: Mapping[str, Any]) -> None:
        self._last[str(rank)] = dict(document)

    def stalled(self, rank: int) -> None:
        """Rank 0 has reported a stall: what it cannot know is looked for and said."""
        if rank == 0:
            self.ask({"stacks": 2, "interval": 0.5}, self._explain_stall)

    def _explain_stall(self, found: dict[str, Any]) -> None:
        from rabit.diagnostics.doctor.diagnosis import diagnose, stall_lines

        lines = stall_lines(diagnose(found))
        # The report of one stall comes again and again; what it is about is said once.
        if lines != self._said:
            self._said = lines
            for line in lines:
                self._note(f"stall: {line}")

    # Looks.

    def ask(self, ask: Mapping[str, Any], answer: Callable[[dict[str, Any]], None]) -> None:
        """Has all nodes look; `answer` follows with what came in time."""
        number, self._next = self._next, self._next + 1
        until = time.monotonic() + float(ask.get("interval", 0.3)) + _ANSWER_S
        nodes = list(self._nodes)
        self._asked[number] = _Asked(answer, len(nodes), until)
        for node in nodes:
            node.look(number, ask)
        if not nodes:
            self._finish(number)

    def due(self) -> float | None:
        return min((each.until for each in self._asked.values()), default=None)

    def tick(self, now: float) -> None:
        for number in [number for number, each in self._asked.items() if each.until <= now]:
            self._finish(number)

    def _finish(self, number: int) -> None:
        asked = self._asked.pop(number, None)
        if asked is not None:
            asked.answer(self.look_of(asked.found))

    def look_of(self, found: dict[str, Any]) -> dict[str, Any]:
        """The look of all ranks: those that have ended are as they were seen last."""
        ended = {}
        for failure in self._roster.failures():
            told = failure.told
            ended[str(failure.rank)] = {
                "status": failure.status,
                "at_s": failure.began_s,
                "was_stopped": failure.was_stopped or failure.is_late,
                "raised": told.raised if told else "",
                "message": told.message if told else "",
                "place": told.place if told else "",
                "lost": told.lost if told else -1,
                "tail": list(failure.tail)[-5:],
            }
        return {
            **found,
            "ranks": {**found["ranks"], **self._last},
            "ended": ended,
            "size": self._size,
            "job": os.getpid(),
            "command": self._command,
            "began": self._began,
        }

    def post_mortem(self) -> dict[str, Any]:
        """The look of a job that has ended."""
        from rabit.diagnostics.look.process import host_facts

        here = host_facts(set(), with_others=False)
        hosts = {**{str(each["host"]): here for each in self._last.values()}, **self._hosts}
        return {**self.look_of({"hosts": hosts, "ranks": {}}), "is_after": True}

    def verdict(self) -> list[str]:
        """What the doctor says of a job that has failed, and where it can be asked again; nothing without records."""
        if not self._last:
            return []
        from rabit.diagnostics.doctor.diagnosis import diagnose, verdict_lines

        found = diagnose(self.post_mortem())
        # What a rank raised is in the block already.
        is_known = bool(found.causes) and found.causes[0].row.name == "raised"
        places = {(each["folder"], each["host"]): None for each in self._last.values()}
        again = [f"Its records are kept: `rabitrun doctor {folder}` on {host} reads them." for folder, host in places]
        if len(again) > _FOLDERS_SHOWN_MAX:
            left = len(again) - _FOLDERS_SHOWN_MAX
            again[_FOLDERS_SHOWN_MAX:] = [f"Records are kept in {left} more {'folders' if left > 1 else 'folder'}."]
        return [*([] if is_known else verdict_lines(found)), *again]

    # Clients.

    def _accept(self) -> None:
        assert self._server is not None
        try:
            client, _ = self._server.accept()
        except OSError:
            return
        peer = struct.unpack("3i", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if peer[1] not in (os.getuid(), 0):
            client.close()
            return
        client.setblocking(False)
        self._clients[client.fileno()] = client, bytearray()
        self._selector.register(client, selectors.EVENT_READ, lambda: self._read(client.fileno()))

    def _read(self, descriptor: int) -> None:
        client, data = self._clients[descriptor]
        try:
            part = client.recv(1 << 14)
        except BlockingIOError:
            return
        except OSError:
            part = b""
        data += part
        if not part or len(data) > _LONGEST_REQUEST:
            self._drop(descriptor)
            return
        line, newline, rest = data.partition(b"\n")
        if not newline:
            return
        self._clients[descriptor] = client, bytearray(rest)
        try:
            ask = json.loads(line)
            interval = min(30.0, max(0.0, float(ask.get("interval", 0.3))))
            stacks = min(50, max(0, int(ask.get("stacks", 1))))
        except (ValueError, TypeError, AttributeError):
            self._drop(descriptor)
            return
        self.ask(
            {"interval": interval, "stacks": stacks},
            lambda found: self._answer(descriptor, client, found),
        )

    def _answer(self, descriptor: int, client: socket.socket, found: dict[str, Any]) -> None:
        if self._clients.get(descriptor, (None,))[0] is not client:
            return  # It has gone meanwhile.
        try:
            # A reader of this user, on this host, that asked: it is written at once, or in a second.
            client.settimeout(1.0)
            client.sendall(json.dumps(found).encode() + b"\n")
            client.setblocking(False)
        except OSError:
            self._drop(descriptor)

    def _drop(self, descriptor: int) -> None:
        client, _ = self._clients.pop(descriptor)
        self._selector.unregister(client)
        client.close()
