"""From the loss of a rank to the next step: elastic jobs of rabit beside what others do after a loss."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from harness import case, table, words

HERE = Path(__file__).resolve().parent
RANKS = 4
LIMIT_S = 120.0
RABIT = (sys.executable, "-m", "rabit.launch", "-np", str(RANKS))
TORCHRUN = (
    *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--no-python"),
    *("--nproc-per-node", str(RANKS)),
)
MPIRUN = ("mpirun", "--with-ft", "ulfm", "--oversubscribe", "--allow-run-as-root", "-np", str(RANKS))
COMMANDS: dict[str, tuple[str, ...]] = {
    "rabit elastic": (*RABIT, "--min-np", "2"),
    "rabit spare": (*RABIT, "--min-np", "2", "--spares", "1"),
    "rabit restarts": (*RABIT, "--max-restarts", "3"),
    "torchrun": (*TORCHRUN, "--max-restarts", "3"),
    "torchrun own stores": (*TORCHRUN, "--max-restarts", "3"),
    "torchft": (),
    "ulfm": MPIRUN,
}
# As torchrun comes, ranks that start anew may read addresses of those before them from its store (pytorch issue
# 135712), and do not come together.
ENVIRONS = {"torchrun own stores": {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}}
WHAT = {
    "rabit elastic": "rabitrun --min-np: three continue",
    "rabit spare": "rabitrun --spares 1: a spare takes the place",
    "rabit restarts": "rabitrun --max-restarts: all start anew",
    "torchrun": "torchrun --max-restarts (gloo): all start anew",
    "torchrun own stores": "the same with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1",
    "torchft": "torchft (gloo): three continue",
    "ulfm": "Open MPI with ULFM: three continue",
}


def why_not(way: str) -> str:
    """Empty if this machine has what `way` takes."""
    if way.startswith("torch") and importlib.util.find_spec("torch") is None:
        return "torch is not installed"
    if way == "torchft":
        try:
            importlib.import_module("torchft")
        except ImportError as error:
            return f"torchft cannot be imported: {error}"
    if way == "ulfm":
        if shutil.which("mpirun") is None or importlib.util.find_spec("mpi4py") is None:
            return "mpirun or mpi4py is not installed"
        said = subprocess.run(["ompi_info"], capture_output=True, text=True, check=False).stdout
        if "FT MPI support: yes" not in said:
            return "this MPI is not Open MPI with ULFM"
    return ""


def start(way: str, folder: Path) -> list[subprocess.Popen[bytes]]:
    program = [sys.executable, str(HERE / "recovery_rank.py"), way, str(folder)]
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    log = (folder / "log").open("wb")

    def process(command: Sequence[str], **more: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command, env={**environ, **more}, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )

    if way != "torchft":
        return [process([*COMMANDS[way], *program], **ENVIRONS.get(way, {}))]
    return [process(program, REPLICA=str(number)) for number in range(RANKS)]


def measure(way: str, folder: Path) -> tuple[float, int]:
    """Seconds from the loss to the next step of all that continue, and how many ranks that step has.

    Raises RuntimeError if the job does not end well.
    """
    processes = start(way, folder)
    until = time.monotonic() + LIMIT_S
    try:
        for each in processes:
            each.wait(max(0.0, until - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"{way} does not end:\n{(folder / 'log').read_text()[-3000:]}") from None
    finally:
        for each in processes:
            if each.poll() is None:
                os.killpg(each.pid, signal.SIGKILL)
                each.wait()
    if not (folder / "killed").exists():
        raise RuntimeError(f"{way} loses no rank:\n{(folder / 'log').read_text()[-3000:]}")
    killed = float((folder / "killed").read_text())
    after: list[tuple[float, int]] = []
    for path in folder.glob("steps.*"):
        steps = [line.split() for line in path.read_text().splitlines()]
        # A step that others had ended in the instant of the loss still had all ranks, and says nothing.
        later = [(float(at), int(size)) for at, step, size in steps if float(at) > killed and int(step) > 30]
        after += later[:1]
    if not after:
        raise RuntimeError(f"{way} makes no step after the loss:\n{(folder / 'log').read_text()[-3000:]}")
    return max(after)[0] - killed, max(after)[1]


@contextlib.contextmanager
def lighthouse(is_needed: bool) -> Iterator[None]:
    """Serves those who use torchft, if any do."""
    if not is_needed:
        yield
        return
    from torchft.coordination import LighthouseServer

    server = LighthouseServer(
        bind="127.0.0.1:0", min_replicas=2, join_timeout_ms=200, quorum_tick_ms=20, heartbeat_timeout_ms=1000
    )
    os.environ["TORCHFT_LIGHTHOUSE"] = server.address()
    try:
        yield
    finally:
        server.shutdown()


@case(rounds=5, ways=words("rabit,torch,ulfm", "those whose name begins with one of these"))
def recovery(o: Any) -> None:
    """From the loss of a rank to the next step: elastic jobs of rabit beside what others do after a loss.

    Four ranks make the same steps by each library (recovery_rank.py), and the last one ends itself by SIGKILL. The
    time is from there until all ranks that continue have ended their next step: median and maximum of the rounds, in
    which the ways take turns. torchft comes with `pip install torchft`; ULFM is a part of Open MPI 5 and needs mpi4py.
    What is not there is left out, with the reason. Horovod does not build with a torch of today.
    """
    chosen = [way for way in COMMANDS if way.startswith(tuple(o.ways))]
    missing = {way: why_not(way) for way in chosen}
    found: dict[str, list[tuple[float, int]]] = {way: [] for way in chosen if not missing[way]}
    failed = Counter[str]()
    with lighthouse("torchft" in found):
        for _ in range(o.rounds):
            for way, times in found.items():
                with tempfile.TemporaryDirectory() as name:
                    try:
                        times.append(measure(way, Path(name)))
                    except RuntimeError as error:
                        failed[way] += 1
                        print(error, file=sys.stderr)
    rows = []
    for way in chosen:
        if missing[way] or not found[way]:
            rows.append([WHAT[way], missing[way] or f"failed {failed[way]} of {o.rounds} times", ""])
            continue
        seconds = [taken for taken, _ in found[way]]
        sizes = sorted({size for _, size in found[way]})
        shown = f"{statistics.median(seconds):.2f}, {max(seconds):.2f} s"
        shown += f"; failed {failed[way]} times" if failed[way] else ""
        rows.append([WHAT[way], shown, ", ".join(map(str, sizes))])
    table(["way", "to the next step: median, maximum", "ranks afterwards"], rows)
