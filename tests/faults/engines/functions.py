"""Engines that start functions, each by a driver of ours: Ray, Dask, multiprocessing, submitit."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from faults.engines.process import SIZE, Engine, kill

DRIVERS = Path(__file__).with_name("drivers.py")


class Functions(Engine):
    """The status is the driver's; a failure is the RunFailed that it does not catch."""

    package = ""
    logs: Mapping[str, str] = {"wrong count": r"rank 4 has not appeared"}

    def missing(self) -> str:
        is_there = importlib.util.find_spec(self.package) is not None
        return "" if is_there else f"not installed: {self.package}"

    def command(self, case: str, folder: Path) -> list[str]:
        return [sys.executable, str(DRIVERS), self.package, case, str(folder)]

    def environ(self, case: str, folder: Path) -> Mapping[str, str]:
        return {"RABIT_STOP_FILE": str(folder / "stop")}

    def lose_host(self, job: subprocess.Popen[bytes], ranks: Sequence[int]) -> None:
        kill(ranks[SIZE // 2 :])

    def stop(self, job: subprocess.Popen[bytes], ranks: Sequence[int]) -> None:
        """Tasks do not run in the main thread of their workers: no signal comes to them."""
        folder = Path(job.args[-1])  # type: ignore[arg-type,index]
        (folder / "stop").touch()


class Ray(Functions):
    """Two nodes of Ray on this machine.  The driver removes one."""

    name = "Ray"
    logs: Mapping[str, str] = {"wrong count": r"GetTimeoutError"}  # Ray has not as many processors
    package = "ray"

    def log(self, folder: Path) -> str:
        """Its workers print into files: the driver shows a line of several that are alike, and none after its end."""
        files = folder.glob("ray/session_latest/logs/worker-*.out")
        return super().log(folder) + "".join(path.read_text() for path in files)

    def lose_host(self, job: subprocess.Popen[bytes], ranks: Sequence[int]) -> None:
        job.send_signal(signal.SIGUSR2)


class Dask(Functions):
    """A worker is a process of one thread; two of them are a host."""

    name = "Dask"
    package = "distributed"


class Multiprocessing(Functions):
    """Its one host is lost with the driver: that dies, and Python's processes go on without their parent."""

    name = "multiprocessing"
    outlived = ("host dies",)
    statuses: Mapping[str, int] = {"host dies": 137}
    logs: Mapping[str, str] = {**Functions.logs, "host dies": r"rank 3 goes on"}
    package = "multiprocessing"

    def lose_host(self, job: subprocess.Popen[bytes], ranks: Sequence[int]) -> None:
        job.kill()

    def stop(self, job: subprocess.Popen[bytes], ranks: Sequence[int]) -> None:
        os.kill(ranks[0], signal.SIGTERM)


class Submitit(Functions):
    name = "submitit"
    package = "submitit"

    def log(self, folder: Path) -> str:
        """Its jobs print into files of their own."""
        return super().log(folder) + "".join(path.read_text() for path in folder.glob("submitit/*.out"))
