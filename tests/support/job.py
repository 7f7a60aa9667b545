"""Job: ranks as processes that a test may kill, stop and disturb, so no launcher is in the way."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
from pathlib import Path

from rabit.rendezvous.discovery import StoreServer


class Job:
    """`ranks` processes of one script, with their own store.  Output goes to files."""

    def __init__(self, folder: Path, ranks: int, script: str, **variables: str) -> None:
        self.folder = folder
        self.ranks = ranks
        self.secret = secrets.token_bytes(32)
        self._store = StoreServer("127.0.0.1", 0, self.secret)
        self.store_address = f"127.0.0.1:{self._store.port}"
        path = folder / "script.py"
        path.write_text(script)
        secret_file = folder / "secret"
        secret_file.touch(mode=0o600)
        secret_file.write_text(self.secret.hex())
        self.processes = []
        for rank in range(ranks):
            environment = {
                **os.environ,
                "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
                "OMP_NUM_THREADS": "1",
                "RABIT_RANK": str(rank),
                "RABIT_SIZE": str(ranks),
                "RABIT_LOCAL_RANK": str(rank),
                "RABIT_LOCAL_SIZE": str(ranks),
                "RABIT_CROSS_RANK": "0",
                "RABIT_CROSS_SIZE": "1",
                "RABIT_STORE_ADDRESS": self.store_address,
                "RABIT_SECRET_FILE": str(secret_file),
                **variables,
            }
            with self.output_path(rank).open("wb") as output:
                self.processes.append(
                    subprocess.Popen(
                        [sys.executable, str(path), str(folder)],
                        env=environment,
                        stdout=output,
                        stderr=subprocess.STDOUT,
                        stdin=subprocess.DEVNULL,
                        start_new_session=True,
                    )
                )

    def output_path(self, rank: int) -> Path:
        return self.folder / f"output.{rank}"

    def output(self, rank: int) -> str:
        return self.output_path(rank).read_text(errors="replace")

    def wait(self, timeout: float) -> list[int]:
        return [process.wait(timeout) for process in self.processes]

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()
        self._store.close()


def wait_for_files(folder: Path, pattern: str, count: int, timeout: float = 60) -> None:
    """Waits until `count` files that match `pattern` exist; ranks say with them how far they are."""
    deadline = time.monotonic() + timeout
    while (found := len(list(folder.glob(pattern)))) < count:
        assert time.monotonic() < deadline, f"only {found} of {count} ranks are ready"
        time.sleep(0.01)
