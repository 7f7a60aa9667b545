"""Runs the parts of `make test` or `make test-full`, saying how far it is and how long it takes.

    python tests/stages.py short|full

Each part is a target of the Makefile. One lane runs the Python tests, one part after the other, and shows what
they print. They mostly wait, so other lanes build and test the native code beside them and give way to them;
what their parts print is shown if they fail. The first part that fails ends the run, and so does one that takes
many times as long as it should: something in it hangs.
The estimates are seconds on 2 cores from nothing; the share of them that earlier parts took corrects the rest.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import IO, NamedTuple


class Part(NamedTuple):
    """One target; `needs` names those of other lanes that must have ended before."""

    target: str
    what: str
    seconds: float
    needs: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()


class Stages(NamedTuple):
    shown: list[Part]
    beside: list[list[Part]]  # lanes, which begin when the first of the shown parts has ended


# Tests have deadlines: beside others they give way less than builds do.
NICENESS_OF_BUILDS, NICENESS_OF_TESTS = 19, 5
# A machine may be slow, and parts wait for each other's processors; what takes longer than this hangs.
TIMES_MAX, SECONDS_MIN = 5, 900
# What takes less than this share of its estimate was there already, and says nothing of how long the rest takes.
NOTHING_TO_DO = 0.25
SHOWN_MAX, SHOWN_OF_STOPPED = 50_000, 1000  # characters of what a part beside has printed

PACKAGES = Part("packages", "Python packages and the library", 115, flags=("-j2",))
SHORT = Stages(
    shown=[
        PACKAGES,
        Part("check", "lint, types and the rules of the repository", 55),
        Part("test-python-short", "Python tests, each under two seconds", 255),
    ],
    beside=[
        [
            Part("build-native", "building the native tests", 190),
            Part("test-native", "native tests", 160),
        ],
    ],
)
FULL = Stages(
    shown=[
        PACKAGES,
        Part("test-python-slow", "Python tests of two seconds and more", 540),
        Part("test-mxnet", "MXNet, in an environment of its own", 90, needs=("ready-mxnet",)),
        Part("test-mpich", "MPICH, in an environment of its own", 200, needs=("ready-mpich",)),
        Part("wheel", "sdist and wheel for other machines", 120, flags=("QUICK=1",)),
        Part("docs", "the HTML pages", 50),
        Part("fuzz", "the fuzz targets", 120, needs=("build-address",)),
    ],
    # The tests wait for most of their time, which is when the next build computes.
    beside=[
        [
            Part("ready-mxnet", "installing MXNet", 35),
            Part("ready-mpich", "installing MPICH", 20),
            Part("build-thread", "building the native tests for TSan", 550),
            Part("build-address", "building the native tests for ASan and UBSan", 550),
            Part("build-bench", "the native benchmarks", 150),
        ],
        [
            Part("test-thread", "native tests under TSan", 350, needs=("build-thread",)),
            Part("test-address", "native tests under ASan and UBSan", 240, needs=("build-address",)),
        ],
    ],
)


def minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def command(part: Part) -> list[str]:
    return [os.environ.get("MAKE", "make"), "--no-print-directory", *part.flags, part.target]


def say(text: str) -> None:
    print(f"== {text}", flush=True)


def limit(part: Part) -> float:
    """The seconds after which the part is taken to hang."""
    return max(SECONDS_MIN, TIMES_MAX * part.seconds)


def give_way(process: int, niceness: int) -> None:
    """Gives a session that has just begun this niceness, however the kernel shares out."""
    os.setpriority(os.PRIO_PROCESS, process, niceness)
    # Where the kernel gives each session its share, niceness counts between the processes of one session; among
    # sessions, and tests start many, it is this file that does. Not every kernel has it, and users may write it
    # ten times a second only: then the niceness of the processes is all there is.
    with contextlib.suppress(FileNotFoundError, ProcessLookupError, BlockingIOError):
        Path(f"/proc/{process}/autogroup").write_text(str(niceness))


def end(process: subprocess.Popen[bytes], by: signal.Signals = signal.SIGTERM) -> None:
    """Ends a part, which leads a session, with everything that it started there."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, by)
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


class Beside:
    """The other lanes: in each, a thread starts one part after the other."""

    def __init__(self, lanes: list[list[Part]]) -> None:
        self.failed: Part | None = None
        self._parts = [part for lane in lanes for part in lane]
        self._ended = {part.target: threading.Event() for part in self._parts}
        self._lock = threading.Lock()
        self._begun: list[subprocess.Popen[bytes]] = []
        self._stopped = False
        self._threads = [threading.Thread(target=self._run, args=(lane,), daemon=True) for lane in lanes]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def wait(self, target: str) -> None:
        """Returns when this part has ended, or will never end because another has failed."""
        self._ended[target].wait()

    def wait_for_all(self) -> None:
        left = [part for part in self._parts if not self._ended[part.target].is_set()]
        if left and not self.failed:
            names = ", ".join(part.what for part in left)
            say(f"left beside: {names}: up to {minutes(sum(part.seconds for part in left))}")
        for part in self._parts:
            self.wait(part.target)

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            for running in self._begun:
                if running.poll() is None:
                    end(running)
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def _run(self, lane: list[Part]) -> None:
        for part in lane:
            for target in part.needs:
                self.wait(target)
            if not self._passes(part):
                for event in self._ended.values():
                    event.set()
                return
            self._ended[part.target].set()

    def _passes(self, part: Part) -> bool:
        start = time.monotonic()
        with tempfile.TemporaryFile() as printed:
            running = self._begin(part, printed)
            if running is None:
                return False
            how = "failed"
            try:
                code = running.wait(limit(part))
            except subprocess.TimeoutExpired:
                how = f"has not ended after {minutes(limit(part))}"
                end(running)
                code = 1
            if code == 0:
                say(f"beside: {part.what}: passed in {minutes(time.monotonic() - start)}")
                return True
            shown = SHOWN_MAX
            if self._stopped:
                how, shown = "was stopped", SHOWN_OF_STOPPED
            printed.seek(0)
            sys.stdout.write(printed.read().decode(errors="replace")[-shown:])
        say(f"beside: {part.what} {how}, see above; `make {part.target}` runs it alone")
        self.failed = self.failed or part
        return False

    def _begin(self, part: Part, printed: IO[bytes]) -> subprocess.Popen[bytes] | None:
        with self._lock:
            if self._stopped or self.failed:
                return None
            niceness = NICENESS_OF_TESTS if part.target.startswith("test-") else NICENESS_OF_BUILDS
            running = subprocess.Popen(
                command(part),
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            give_way(running.pid, niceness)
            self._begun.append(running)
        return running


def run_to_its_end(part: Part) -> int:
    with subprocess.Popen(command(part), start_new_session=True) as running:
        try:
            return running.wait(limit(part))
        except subprocess.TimeoutExpired:
            say(f"{part.what} has not ended after {minutes(limit(part))}")
            end(running)
            return 1
        except KeyboardInterrupt:
            end(running, signal.SIGINT)
            raise


def run_shown(stages: Stages, beside: Beside) -> int:
    taken = expected = 0.0
    for number, part in enumerate(stages.shown, 1):
        begin = time.monotonic()
        for target in part.needs:
            beside.wait(target)
        if beside.failed:
            return 1
        pace = taken / expected if expected else 1.0
        left = sum(each.seconds for each in stages.shown[number:]) * pace
        say(
            f"{number}/{len(stages.shown)} {part.what}: about {minutes(part.seconds * pace)}, "
            f"then {minutes(left)} more"
        )
        code = run_to_its_end(part)
        if code != 0:
            say(f"{part.what} failed; `make {part.target}` runs it alone")
            return code
        if number == 1:
            beside.start()
        seconds = time.monotonic() - begin
        if seconds > NOTHING_TO_DO * part.seconds:
            taken += seconds
            expected += part.seconds
    beside.wait_for_all()
    return 1 if beside.failed else 0


def main() -> int:
    if len(sys.argv) != 2 or sys.argv[1] not in ("short", "full"):
        print(__doc__, file=sys.stderr)
        return 2
    stages = SHORT if sys.argv[1] == "short" else FULL
    start = time.monotonic()
    beside = Beside(stages.beside)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # who ends it sees what was running
    try:
        code = run_shown(stages, beside)
    except KeyboardInterrupt:
        code = 130
    finally:
        beside.stop()
    parts = len(stages.shown) + sum(len(lane) for lane in stages.beside)
    if code == 0:
        say(f"all {parts} parts passed in {minutes(time.monotonic() - start)}")
    return code


if __name__ == "__main__":
    sys.exit(main())
