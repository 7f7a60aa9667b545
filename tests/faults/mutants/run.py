"""Applies bugs to the sources, one at a time, and counts those that the tests catch.

    python tests/faults/mutants/run.py [--only TEXT] [--without-build | --native] [--folder build/mutants] [--list]

The sources are copied into a folder, and built there once; a bug of the library costs some files and a link
more. First all tests must pass without a bug, else what they find says nothing.  A test that takes a minute and five
times as long as without the bug has caught it: a hang is a failure.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from faults.mutants.catalogue import MUTANTS
from faults.mutants.mutant import Mutant

ROOT = Path(__file__).resolve().parents[3]
LIMIT_S = 60.0  # and five times as long as without a bug
PASSED, FAILED, TIMED_OUT = 0, 1, -1  # of pytest and rabit_tests; anything else did not test


class Tree:
    """The copy of the sources, and its build."""

    def __init__(self, path: Path, builds: bool) -> None:
        self.path = path
        self._builds = builds
        self._build = path / "build" / "native"
        self._took_s: dict[str, float] = {}  # each test without a bug

    def make(self) -> None:
        """Copies what git knows and has changed; times of files that are as before stay."""
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT, capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        wanted = {name for name in listed.split("\0") if name and (ROOT / name).is_file()}
        for name in wanted:
            source, copy = ROOT / name, self.path / name
            if not copy.exists() or copy.read_bytes() != source.read_bytes():
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, copy)
        for top in ("rabit", "rabit_torch", "rabit_mxnet", "tests", "native"):
            for each in (self.path / top).rglob("*"):
                name = each.relative_to(self.path).as_posix()
                if each.is_file() and name not in wanted and "__pycache__" not in name:
                    each.unlink()
        if self._builds:
            self._make_build()

    def _make_build(self) -> None:
        tools = Path(sys.executable).parent
        launcher = ["-DCMAKE_CXX_COMPILER_LAUNCHER=ccache"] if shutil.which("ccache") else []
        subprocess.run(
            [tools / "cmake", "-S", self.path / "native", "-B", self._build, "-G", "Ninja", "-DRABIT_TESTS=ON",
             f"-DCMAKE_MAKE_PROGRAM={tools / 'ninja'}", *launcher],
            stdout=subprocess.DEVNULL, check=True,
        )  # fmt: skip
        error = self.build()
        if error:
            raise SystemExit(error)

    def build(self) -> str:
        """Builds the library and its tests; what the compiler said if it cannot, else ""."""
        ninja = Path(sys.executable).parent / "ninja"
        done = subprocess.run(
            [ninja, "-C", self._build, "--quiet", "rabit", "rabit_tests"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        return done.stdout + done.stderr if done.returncode else ""

    def baseline(self, what: str) -> None:
        """Exits unless this test passes where there is no bug."""
        began = time.monotonic()
        status, output = self.test(what)
        if status != PASSED:
            raise SystemExit(f"{what} does not pass without a bug:\n{output}")
        self._took_s[what] = time.monotonic() - began

    def test(self, what: str) -> tuple[int, str]:
        """Status and end of the output of one element of `Mutant.tests`."""
        if what.startswith("native:"):
            command = [str(self._build / "rabit_tests"), f"--filter={what.removeprefix('native:')}"]
        else:
            command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *shlex.split(what)]
        environ = {**os.environ, "PYTHONPATH": str(self.path), "PYTHONDONTWRITEBYTECODE": "1"}
        if self._builds:
            environ["RABIT_LIBRARY"] = str(self._build / "librabit.so")
        process = subprocess.Popen(
            command, cwd=self.path, env=environ, text=True, errors="replace",
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            output, _ = process.communicate(timeout=LIMIT_S + 5 * self._took_s.get(what, LIMIT_S))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return TIMED_OUT, "it does not end"
        # What crashes has failed; 2 to 5 of pytest mean that nothing was tested.
        status = FAILED if process.returncode < 0 else process.returncode
        return status, output[-4000:]


def verdict(tree: Tree, mutant: Mutant) -> str:
    """The test that catches the mutant, "" if none does; raises SystemExit if that cannot be said."""
    path = tree.path / mutant.file
    before = path.read_bytes()
    path.write_text(mutant.changed(tree.path))
    try:
        error = tree.build() if mutant.is_native else ""
        if error:
            raise SystemExit(f"mutant '{mutant.name}' does not build:\n{error}")
        for what in mutant.tests:
            status, output = tree.test(what)
            if status in (FAILED, TIMED_OUT):
                return f"{what}, which hangs" if status == TIMED_OUT else what
            if status != PASSED:
                raise SystemExit(f"'{mutant.name}': {what} tested nothing ({status}):\n{output}")
        return ""
    finally:
        path.write_bytes(before)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="mutants whose file or name has this text")
    parser.add_argument("--without-build", action="store_true", help="mutants of Python sources only")
    parser.add_argument("--native", action="store_true", help="mutants of the library only")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "mutants", help="for the copy")
    parser.add_argument("--list", action="store_true", help="name them and end")
    given = parser.parse_args()
    chosen = [
        each for each in MUTANTS
        if (given.only in each.file or given.only in each.name)
        and not (each.is_native and given.without_build)
        and (each.is_native or not given.native)
    ]  # fmt: skip
    if given.list:
        print("\n".join(f"{each.file}: {each.name}" for each in chosen))
        return 0
    began = time.monotonic()
    # The library of the package serves as well where no test of it is to run.
    tree = Tree(given.folder.resolve(), builds=not given.without_build)
    tree.make()
    for what in dict.fromkeys(each for mutant in chosen for each in mutant.tests):
        tree.baseline(what)
    print(f"all tests pass without a bug, after {time.monotonic() - began:.0f} s", flush=True)
    survived = []
    for number, mutant in enumerate(chosen, start=1):
        at = time.monotonic()
        found = verdict(tree, mutant)
        if not found:
            survived.append(mutant)
        said = f"caught by {found}" if found else "SURVIVED"
        print(f"{number:3} {time.monotonic() - at:5.0f} s  {mutant.name}: {said}", flush=True)
    print(f"{len(chosen) - len(survived)} of {len(chosen)} caught, in {time.monotonic() - began:.0f} s")
    for mutant in survived:
        print(f"survived: {mutant.name} ({mutant.file})")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
