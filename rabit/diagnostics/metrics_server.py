"""Serves the numbers of a host's ranks to Prometheus, from the process that runs these ranks and not from theirs."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from rabit.diagnostics.look.process import process_facts
from rabit.diagnostics.metrics import CONTENT_TYPE, openmetrics
from rabit.errors import InvalidArgument
from rabit.record.reader import Record, read_counters
from rabit.rendezvous.host_port import split_address
from rabit.threads import start_thread

__all__ = ["MetricsServer", "text_of", "write_textfile"]

_TIMEOUT_S = 10.0


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(
        self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler], family: int
    ) -> None:
        self.address_family = family
        super().__init__(address, handler)


class MetricsServer:
    """Answers GET /metrics at `address` until `close`.  Reads records; no rank notices it.

    address: "host:port"; port 0: a free one.  text: what is served, made at each request.
    Raises InvalidArgument if the address cannot be used.
    """

    def __init__(self, address: str, text: Callable[[], str]) -> None:
        class Handler(BaseHTTPRequestHandler):
            timeout = _TIMEOUT_S

            def do_GET(self) -> None:  # the name that http.server asks for
                if self.path.partition("?")[0] not in ("/metrics", "/"):
                    self.send_error(404)
                    return
                body = text().encode()
                self.send_response(200)
                self.send_header("Content-Type", CONTENT_TYPE)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *arguments: Any) -> None:
                """Requests are not logged."""

        host, port = split_address(address, "RABIT_METRICS")
        try:
            family = socket.getaddrinfo(
                host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0][0]
            self._server = _Server((host, port), Handler, family)
        except OSError as error:
            raise InvalidArgument(
                f"metrics cannot be served at {address}: {error.strerror or error}. Name an address of this host and a "
                "free port in RABIT_METRICS (--metrics), such as 0.0.0.0:9400."
            ) from error
        self.port = int(self._server.server_address[1])
        start_thread(self._server.serve_forever, "metrics")

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def text_of(paths: Iterable[Path], job: str) -> str:
    """The text for the records at `paths`."""
    found: dict[tuple[int, int], tuple[Record, dict[str, Any]]] = {}
    for path in paths:
        try:
            record = read_counters(path)
        except InvalidArgument:
            continue  # It was made a moment ago, or is gone with its rank.
        facts = process_facts(int(record.header.get("pid", 0)))
        is_same = bool(facts) and facts["start_ticks"] == record.header.get("start_ticks")
        key = record.rank, record.header.get("engine", 1)
        if is_same or key not in found:  # A process that came for one that was lost counts.
            found[key] = record, facts if is_same else {}
    return openmetrics(found.values(), job)


def write_textfile(folder: Path, name: str, text: str) -> None:
    """Replaces rabit_NAME.prom in `folder` at once, as node_exporter's textfile collector wants it.

    Raises OSError.
    """
    path = folder / f"rabit_{name}.prom"
    draft = folder / f".rabit_{name}.{os.getpid()}"
    draft.write_text(text)
    draft.replace(path)
