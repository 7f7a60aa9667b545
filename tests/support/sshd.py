"""An sshd of our own on the loopback interface: other hosts, as far as rabitrun can tell."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SSHD = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/sbin")


class NoSshd(Exception):
    """The text says why there is none."""


@contextmanager
def started(folder: Path) -> Iterator[int]:
    """Runs sshd with keys of its own, which lie in `folder`; gives its port.

    sshd wants every folder above its files to be safe.  Raises NoSshd where there is none.
    """
    if SSHD is None or shutil.which("ssh") is None:
        raise NoSshd("OpenSSH's client or server is not installed")
    for name in ("host", "user", "stranger"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)],
            check=True, stdin=subprocess.DEVNULL, timeout=30,
        )  # fmt: skip
    shutil.copy(folder / "user.pub", folder / "authorized")
    # A port can only be chosen beforehand; another process may take it, so more are tried.
    for _ in range(5):
        port = free_port()
        process = _start(folder, port)
        if _answers(port, process):
            break
        process.kill()
        process.wait()
    else:
        raise NoSshd(f"sshd does not start: {(folder / 'log').read_text()}")
    try:
        yield port
    finally:
        process.kill()
        process.wait()


def flags(folder: Path, port: int) -> list[str]:
    """What makes rabitrun reach every host through the sshd of `started`: 127.0.0.1 and localhost."""
    return [
        "--ssh-always",
        "--ssh-port", str(port),
        "--ssh-identity-file", str(folder / "user"),
        "--ssh-option", f"UserKnownHostsFile={folder}/known",
        "--ssh-option", "IdentitiesOnly=yes",
        "--ssh-option", "HostKeyAlgorithms=ssh-ed25519",
    ]  # fmt: skip


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _start(folder: Path, port: int) -> subprocess.Popen[bytes]:
    key = (folder / "host.pub").read_text()
    (folder / "known").write_text(f"[127.0.0.1]:{port} {key}[localhost]:{port} {key}")
    (folder / "config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\nPidFile none\n"
        f"AuthorizedKeysFile {folder}/authorized\nStrictModes no\nUsePAM no\n"
        "PasswordAuthentication no\nKbdInteractiveAuthentication no\nMaxStartups 100\n"
    )
    with contextlib.suppress(OSError):
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(
            [str(SSHD), "-D", "-e", "-f", str(folder / "config")],
            stdin=subprocess.DEVNULL,
            stderr=log,
        )


def _answers(port: int, process: subprocess.Popen[bytes]) -> bool:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return True
        time.sleep(0.02)
    return False
