"""Runs the parts of `make test` or `make test-full`, saying how far it is and how long it takes.

    python tests/stages.py short [WHEEL=path]
    python tests/stages.py full

With a wheel nothing is compiled: what builds or tests native code is left out.
Each part is a target of the Makefile. One lane runs the Python tests, one part after the other, and shows what
they print. They mostly wait, so other lanes build and test the native code beside them and give way to them;
what their parts print is shown if they fail. A part that fails stops only those that need what it makes, and the
run ends with a list of all that failed. A part that takes many times as long as it should has failed too:
something in it hangs.
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
    """One target; `needs` names those of any lane that must have passed before."""

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
LOOKS_EVERY_S = 0.2
# What takes less than this share of its estimate was there already, and says nothing of how long the rest takes.
NOTHING_TO_DO = 0.25
SHOWN_MAX, SHOWN_OF_STOPPED = 50_000, 1000  # characters of what a part beside has printed

PACKAGES = Part("packages", "Python packages and the library", 115, flags=("-j2",))
SHORT = Stages(
    shown=[
        PACKAGES,
        Part("check", "lint, types and the rules of the repository", 55, flags=("-j3", "-k", "-O")),
        Part("test-python-short", "Python tests, each under two seconds", 255),
    ],
    beside=[
        [
            Part("build-native", "building the native tests", 190),
            Part("test-native", "native tests", 160, needs=("build-native",)),
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
            Part(
                "test-address", "native tests under ASan and UBSan", 240, needs=("build-address",)
            ),
        ],
    ],
)


def minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


GIVEN: list[str] = []  # what make gets besides


def command(part: Part) -> list[str]:
    return [
        os.environ.get("MAKE", "make"),
        "--no-print-directory",
        *part.flags,
        *GIVEN,
        part.target,
    ]


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


class Results:
    """Which parts have ended, and how.  Thread-safe."""

    def __init__(self, parts: list[Part]) -> None:
        self._ended = {part.target: threading.Event() for part in parts}
        self._passed: set[str] = set()
        self.failed: list[Part] = []

    def note(self, part: Part, passed: bool) -> None:
        if passed:
            self._passed.add(part.target)
        else:
            self.failed.append(part)
        self._ended[part.target].set()

    def leave_out(self, part: Part) -> None:
        """The part does not run: what waits for it need not wait."""
        self._ended[part.target].set()

    def lacks(self, part: Part) -> str | None:
        """Waits for what the part needs; the first target of these that has not passed."""
        for target in part.needs:
            self._ended[target].wait()
            if target not in self._passed:
                return target
        return None

    def left(self, parts: list[Part]) -> list[Part]:
        return [part for part in parts if not self._ended[part.target].is_set()]


class Beside:
    """The other lanes: in each, a thread starts one part after the other."""

    def __init__(self, lanes: list[list[Part]], results: Results) -> None:
        self._results = results
        self._parts = [part for lane in lanes for part in lane]
        self._lock = threading.Lock()
        self._begun: list[subprocess.Popen[bytes]] = []
        self._stopped = False
        self._is_alone = threading.Event()  # the shown parts have ended
        self._threads = [
            threading.Thread(target=self._run, args=(lane,), daemon=True) for lane in lanes
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def wait_for_all(self) -> None:
        """Waits for the other lanes, which have the machine for themselves from now on."""
        self._is_alone.set()
        left = self._results.left(self._parts)
        if left:
            names = ", ".join(part.what for part in left)
            say(f"left beside: {names}: up to {minutes(sum(part.seconds for part in left))}")
        for thread in self._threads:
            thread.join()

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            self._is_alone.set()
            for running in self._begun:
                if running.poll() is None:
                    end(running)
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def _run(self, lane: list[Part]) -> None:
        for part in lane:
            missing = self._results.lacks(part)
            if missing is None and not self._stopped:
                self._results.note(part, self._passes(part))
            else:
                leave_out(part, missing, self._results)

    def _passes(self, part: Part) -> bool:
        start = time.monotonic()
        with tempfile.TemporaryFile() as printed:
            how = self._run_to_its_end(part, printed)
            if not how:
                say(f"beside: {part.what}: passed in {minutes(time.monotonic() - start)}")
                return True
            shown = SHOWN_MAX
            if self._stopped:
                how, shown = "was stopped", SHOWN_OF_STOPPED
            printed.seek(0)
            sys.stdout.write(printed.read().decode(errors="replace")[-shown:])
        say(f"beside: {part.what} {how}, see above; `make {part.target}` runs it alone")
        return False

    def _run_to_its_end(self, part: Part, printed: IO[bytes]) -> str:
        """Returns how the part failed, or nothing.

        What gives way gets next to nothing on a busy machine.  So once there are no tests to give way to, a build
        begins again without: it continues where it was, and only now its time counts.
        """
        gives_way = not self._is_alone.is_set()
        running = self._begin(part, printed, gives_way)
        if running is None:
            return "was stopped"
        if gives_way and not part.target.startswith("test-"):
            while running.poll() is None and not self._is_alone.wait(LOOKS_EVERY_S):
                pass
            if running.poll() is None:
                end(running)
                return self._run_to_its_end(part, printed)
        try:
            return "failed" if running.wait(limit(part)) else ""
        except subprocess.TimeoutExpired:
            end(running)
            return f"has not ended after {minutes(limit(part))}"

    def _begin(
        self, part: Part, printed: IO[bytes], gives_way: bool
    ) -> subprocess.Popen[bytes] | None:
        with self._lock:
            if self._stopped:
                return None
            running = subprocess.Popen(
                command(part),
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            if gives_way:
                is_test = part.target.startswith("test-")
                give_way(running.pid, NICENESS_OF_TESTS if is_test else NICENESS_OF_BUILDS)
            self._begun.append(running)
        return running


def leave_out(part: Part, missing: str | None, results: Results) -> None:
    if missing is not None:
        say(f"left out: {part.what}, which needs `make {missing}`")
    results.leave_out(part)


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


def run_shown(parts: list[Part], beside: Beside, results: Results) -> None:
    taken = expected = 0.0
    for number, part in enumerate(parts, 1):
        begin = time.monotonic()
        missing = results.lacks(part)
        if missing is not None:
            leave_out(part, missing, results)
            continue
        pace = taken / expected if expected else 1.0
        left = sum(later.seconds for later in parts[number:]) * pace
        then = f", then {minutes(left)} more" if left else ""
        say(f"{number}/{len(parts)} {part.what}: about {minutes(part.seconds * pace)}{then}")
        passed = run_to_its_end(part) == 0
        results.note(part, passed)
        if not passed:
            say(f"{part.what} failed; `make {part.target}` runs it alone")
        if number == 1:
            if not passed:  # Everything else needs it.
                return
            beside.start()
        seconds = time.monotonic() - begin
        if seconds > NOTHING_TO_DO * part.seconds:
            taken += seconds
            expected += part.seconds
    beside.wait_for_all()


def main() -> int:
    kind, *given = sys.argv[1:] or [""]
    has_wheel = [word.startswith("WHEEL=") for word in given]
    if kind not in ("short", "full") or not all(has_wheel) or (given and kind == "full"):
        print(__doc__, file=sys.stderr)
        return 2
    GIVEN[:] = given
    stages = SHORT if kind == "short" else FULL
    if given:
        stages = stages._replace(beside=[])
    start = time.monotonic()
    parts = [*stages.shown, *(part for lane in stages.beside for part in lane)]
    results = Results(parts)
    beside = Beside(stages.beside, results)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # who ends it sees what was running
    try:
        run_shown(stages.shown, beside, results)
    except KeyboardInterrupt:
        return 130
    finally:
        beside.stop()
    if results.failed:
        names = ", ".join(f"{part.what} (make {part.target})" for part in results.failed)
        say(f"{len(results.failed)} of {len(parts)} parts failed: {names}")
        return 1
    say(f"all {len(parts)} parts passed in {minutes(time.monotonic() - start)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
