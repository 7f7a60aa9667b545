"""All that is measured of gradient methods, part after part, with what is left: `make methods`."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import Option, case

HERE = Path(__file__).parent
MEASURED_STEPS = 64  # of letters, for which the minutes below hold


@dataclass(frozen=True)
class Part:
    """minutes: on two processors.  result: its file, if it runs once.  needs: files, without which it is left out.

    beside: it runs with the part after it; the minutes are its share of theirs.
    """

    title: str
    minutes: float
    words: Sequence[str | Path]
    result: Path | None = None
    needs: Sequence[Path] = ()
    beside: bool = False

    def why_not(self) -> str:
        """Why it need not, or cannot, run; nothing if it must."""
        if self.result is not None and self.result.exists():
            return f"{self.result.name} is there"
        missing = [each.name for each in self.needs if not each.exists()]
        return f"without {', '.join(missing)}" if missing else ""


def parts_of(o: Any) -> list[Part]:
    folder, pictures = o.folder, HERE.parents[1] / "docs" / "evidence"
    text, digits, peers = (folder / f"{each}.json" for each in ("text", "digits", "peers"))
    text_links, slow, fast = (folder / f"{each}.json" for each in ("text_links", "links_100M", "links_1G"))
    steps = o.text_steps * o.text_seeds / MEASURED_STEPS
    letters = ["--steps", str(o.text_steps), "--seeds", str(o.text_seeds)]
    return [
        Part("accuracy on digits", MINUTES["digits"], [".", "methods_digits", "--save", digits], beside=True),
        Part("letters", MINUTES["text"] * steps, [".", "methods_text", *letters, "--save", text]),
        Part(
            "steps of letters on a slow link", MINUTES["text_links"],
            [".", "methods_text_links", "--save", text_links],
        ),
        Part(
            "picture of letters", 0.1,
            [".", "methods_curves", "--measured", text, "--picture", o.picture, "--links", text_links],
        ),
        *(
            Part(
                f"links of {rate}bit/s", MINUTES[rate],
                [".", "methods_links", "--rate", rate, "--steps", count, "--save", path], path,
            )
            for rate, count, path in (("100M", "1", slow), ("1G", "2", fast))
        ),
        Part("who waits for a slow rank", MINUTES["waits"], [".", "methods_waits", "--save", folder / "waits.json"]),
        Part("torch's own hooks", MINUTES["peers"], [".", "methods_peers", "--save", peers], peers),
        Part(
            "picture of links", 0.1,
            [
                ".", "methods_picture", "--links", f"{slow},{fast}", "--digits", digits,
                "--picture", pictures / "methods_measured.svg",
            ],
            needs=(slow, fast),
        ),
        Part("verdict", 0.1, [".", "methods_verdict", "--folder", folder]),
    ]  # fmt: skip


MINUTES = {"digits": 7.3, "text": 4.7, "text_links": 2.5, "100M": 2.4, "1G": 0.8, "waits": 0.4, "peers": 1.2}


def run(parts: Sequence[Part]) -> int:
    """Ends with the status of the first part that fails, or of the last."""
    begin, done = time.monotonic(), 0.0  # done: minutes as estimated
    left = list(parts)
    while left:
        count = 1 + next(number for number, each in enumerate(left) if not each.beside)
        together = [each for each in left[:count] if not each.why_not()]
        passed = (time.monotonic() - begin) / 60
        # Of rows that an earlier run has measured, a part takes no time, which says nothing of the next.
        pace = max(passed / done, 0.5) if done else 1.0
        rest = pace * sum(each.minutes for each in left if not each.why_not())
        for number, part in enumerate(left[:count], len(parts) - len(left) + 1):
            why = part.why_not()
            length = f"left out, {why}" if why else f"about {pace * part.minutes:.1f} min"
            print(f"== {number}/{len(parts)} {part.title}: {length}", flush=True)
        if together:
            print(f"   {passed:.1f} min passed, {rest:.1f} left", flush=True)
        status = run_together(together)
        if status:
            return status
        done += sum(each.minutes for each in together)
        left = left[count:]
    print(f"== {(time.monotonic() - begin) / 60:.1f} min", flush=True)
    return 0


def run_together(parts: Sequence[Part]) -> int:
    """Waits for all of them, also if one fails: they keep what they measure.  The status of the first that did."""
    jobs = [
        subprocess.Popen(
            [sys.executable, str(HERE / str(part.words[0])), *map(str, part.words[1:])],
            stdout=subprocess.PIPE if len(parts) > 1 else None,
            text=True,
        )
        for part in parts
    ]
    readers = [
        threading.Thread(target=show, args=(part.title, job))
        for part, job in zip(parts, jobs, strict=True)
        if job.stdout is not None
    ]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    return next((status for status in [job.wait() for job in jobs] if status), 0)


def show(title: str, job: subprocess.Popen[str]) -> None:
    assert job.stdout is not None
    for line in job.stdout:
        print(f"{title}: {line}", end="", flush=True)


@case(
    folder="build/methods",
    text_steps=MEASURED_STEPS,
    text_seeds=1,
    picture=Option("", help="of letters; by default in the folder"),
)
def methods_all(o: Any) -> bool:
    """All that is measured of gradient methods, part after part, with what is left: `make methods`.

    Parts keep what they have measured in the folder, so that a run which was cut continues where it was. Before each
    part stands how long it takes and the remaining time: as on two processors at first, then at the pace of this
    machine.
    Two parts measure no time, and run beside each other. Ends with one table of what falls short, and as that does.
    """
    o.folder = Path(o.folder)
    o.folder.mkdir(parents=True, exist_ok=True)
    o.picture = Path(o.picture or o.folder / "text.svg")
    return run(parts_of(o)) == 0
