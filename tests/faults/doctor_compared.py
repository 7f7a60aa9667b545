"""The doctor next to torch's flight-recorder analyser and a stall report, on the same jobs.

    python tests/faults/doctor_compared.py [--only NAME,NAME] [--seed 0]

Each job has one fault that makes it hang or slow.  While it runs, its records are converted to torch's format and given
to torchfrtrace, and the doctor is asked.  The stall report is what Horovod documents for its stall inspector (after
60 s: the tensors that wait and the ranks that have not submitted them), taken from the same records.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import re
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from faults.doctor_faults import (
    INJECTIONS,
    RANKS,
    Injection,
    Place,
    _environ,
    _wait_until_met,
    doctor,
    job,
)

FAULTS = (
    "branch", "cross-order", "gil-held", "fork-deadlock", "blocking-call", "storage-hangs", "program-differs",
    "stopped", "loader-slow", "data-skew", "gc", "checkpoint", "pinned",
)  # fmt: skip


def torch_says(place: Place, records: Path) -> str:
    """The ranks and the reason that torchfrtrace prints; "nothing"."""
    dumps = place.folder / "dumps"
    words = [
        sys.executable,
        "-m",
        "rabit.launch",
        "record",
        "convert",
        "--to",
        "fr",
        "-o",
        str(dumps),
        str(records),
    ]
    subprocess.run(words, env=_environ(place), check=True, capture_output=True)
    tool = Path(sys.executable).with_name("torchfrtrace")
    done = subprocess.run(
        [str(tool), str(dumps), "-p", "rank_"], capture_output=True, text=True, timeout=60
    )
    said = done.stdout + done.stderr
    if missing := re.search(r"missing ranks: \{([^}]*)\}", said):
        return f"ranks {missing[1]} are missing"
    if culprit := re.search(r"(\w*MISMATCH\w*)", said):
        return f"{culprit[1]} (there is none)"
    return "nothing"


def stall_says(document: dict[str, object]) -> str:
    """Tensor and missing ranks, if something waits."""
    found = re.search(
        r"waits? for (\w+ '[^']*'), which (ranks? [\d, and-]+) ha", str(document["summary"])
    )
    return f"{found[1]}: {found[2].strip()} missing" if found else "nothing"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="names, with commas")
    parser.add_argument("--seed", default="0")
    parsed = parser.parse_args()
    print(
        "| fault | rank | doctor: class, rank, line | torchfrtrace | stall report |\n| --- | --- | --- | --- | --- |"
    )
    for fault in parsed.only.split(",") if parsed.only else FAULTS:
        dice = random.Random(f"{parsed.seed} {fault}")
        injection: Injection = INJECTIONS[fault]
        with tempfile.TemporaryDirectory(prefix="doctor-") as name, contextlib.ExitStack() as stack:
            place = Place(Path(name), dice.randrange(RANKS), dice.uniform(1.5, 4.0))
            prefix = stack.enter_context(injection.around(place)) if injection.around else []
            stack.enter_context(job(place, fault, injection, prefix))
            _wait_until_met(place, injection.ranks, max(2.5, injection.wait_s))
            document = doctor(place)
            torch = torch_says(place, next(place.folder.glob("rabit-*/records-*")))
        first = next(iter(document["causes"]), None)
        line = f", {Path(first['line'].partition(',')[0]).name}" if first and first["line"] else ""
        ours = f"{first['class']}, ranks {first['ranks']}{line}" if first else "nothing"
        print(f"| {fault} | {place.who} | {ours} | {torch} | {stall_says(document)} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
