"""Python stacks of ranks: asked for by a signal that the interpreter itself answers, and merged.

The answer needs no thread of the rank and not its GIL: faulthandler writes it from the signal's handler into a file
next to the record.  A rank that has no handler for the signal is never sent it.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rabit.diagnostics.look.process import catches, process_facts
from rabit.diagnostics.tracebacks import is_installed, is_ours
from rabit.printable import printable

__all__ = ["Frame", "ask_for_stacks", "merged", "ranks_text", "stack_lines", "users_line"]

# File, line, function; the innermost frame is first.
Frame = Sequence[Any]
_ANSWER_S = 0.6
_QUIET_S = 0.01
_THREAD = re.compile(r"^(?:Current thread|Thread) (0x[0-9a-f]+)")
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$')
_STOPPED = {"T": "is stopped", "t": "is stopped by a debugger", "Z": "has ended"}


def ask_for_stacks(
    headers: Mapping[int, Mapping[str, Any]],
) -> dict[int, tuple[list[dict[str, Any]], str]]:
    """By rank the threads of each process, {"main": bool, "frames": [...]}, or why there are none.

    headers: of the ranks' records, of processes of this host.  Waits for 0.6 s at most.
    """
    found: dict[int, tuple[list[dict[str, Any]], str]] = {}
    waiting: dict[int, tuple[Path, int]] = {}
    for rank, header in headers.items():
        pid, signum = int(header.get("pid", 0)), int(header.get("stack_signal", 0))
        facts = process_facts(pid) if pid else {}
        why = _why_none(header, facts, signum)
        if not why and not catches(pid, signum):
            why = "its handler for stacks is gone: the program has taken the signal"
        if why:
            found[rank] = [], why
            continue
        path = Path(str(header["stacks"]))
        try:
            size = path.stat().st_size
            os.kill(pid, signum)
        except OSError as error:
            found[rank] = [], f"cannot be asked: {error.strerror}"
            continue
        waiting[rank] = path, size
    deadline = time.monotonic() + _ANSWER_S
    for rank, (path, size) in waiting.items():
        text = _answer(path, size, deadline)
        state = process_facts(int(headers[rank].get("pid", 0))).get("state", "")
        why = f"does not answer (state {state or 'gone'})" if not text else ""
        found[rank] = parse(text, int(headers[rank].get("main_thread", 0))), why
    return found


def _why_none(header: Mapping[str, Any], facts: Mapping[str, Any], signum: int) -> str:
    if not facts or facts["start_ticks"] != header.get("start_ticks"):
        return "has ended"
    if facts["state"] in _STOPPED:
        tracer = facts.get("tracer")
        return _STOPPED[facts["state"]] + (f" (process {tracer})" if tracer else "")
    return (
        ""
        if signum and header.get("stacks")
        else "shows no stacks: the program uses the signal itself"
    )


def _answer(path: Path, start: int, deadline: float) -> str:
    """What came after `start`, once nothing more comes."""
    size, quiet_at = start, deadline
    while (now := time.monotonic()) < deadline:
        with contextlib.suppress(OSError):
            grown = path.stat().st_size
            if grown > size:
                size, quiet_at = grown, now + _QUIET_S
        if size > start and now >= quiet_at:
            break
        time.sleep(0.002)
    with path.open("rb") as file:
        file.seek(start)
        return file.read(1 << 20).decode(errors="replace")


def parse(text: str, main_thread: int) -> list[dict[str, Any]]:
    """The threads of one dump; the main thread is first."""
    threads: list[dict[str, Any]] = []
    for line in text.splitlines():
        if match := _THREAD.match(line):
            threads.append({"main": int(match.group(1), 16) == main_thread, "frames": []})
        elif threads and (match := _FRAME.match(line)):
            threads[-1]["frames"].append([match.group(1), int(match.group(2)), match.group(3)])
    return sorted(threads, key=lambda each: not each["main"])


def users_line(frames: Sequence[Frame]) -> str:
    """ "train.py:31, in main": the innermost frame of the user's own code; else the innermost outside rabit."""
    outside = [frame for frame in frames if not is_ours(frame[0])]
    own = [each for each in outside if not is_installed(each[0])]
    if not (own or outside):
        return ""
    file, line, function = (own or outside)[0]
    return printable(f"{file}:{line}, in {function}")


def merged(stacks: Mapping[int, Sequence[Frame]]) -> list[tuple[list[int], Sequence[Frame]]]:
    """Ranks that have equal stacks together, those of the smallest rank first."""
    by_stack: dict[tuple[tuple[Any, ...], ...], list[int]] = {}
    for rank in sorted(stacks):
        by_stack.setdefault(tuple(tuple(each) for each in stacks[rank]), []).append(rank)
    return [(ranks, [list(frame) for frame in frames]) for frames, ranks in by_stack.items()]


def ranks_text(ranks: Iterable[int]) -> str:
    """ "rank 3", "ranks 0-2 and 5"."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    words = [
        str(run[0])
        if len(run) == 1
        else f"{run[0]}-{run[-1]}"
        if len(run) > 2
        else f"{run[0]}, {run[1]}"
        for run in runs
    ]
    is_one = len(runs) == 1 and len(runs[0]) == 1
    text = ", ".join(words[:-1]) + " and " + words[-1] if len(words) > 1 else "".join(words)
    return f"rank {text}" if is_one else f"ranks {text}"


def stack_lines(frames: Sequence[Frame], longest: int = 30) -> list[str]:
    """A stack as text: the user's line first, then all frames from the innermost on; those of rabit are one line."""
    lines = [f"  at {users_line(frames)}"] if users_line(frames) else []
    inside = 0
    for file, line, function in frames[:longest]:
        if is_ours(file):
            inside += 1
            continue
        if inside:
            lines.append(f"    [{inside} {'frame' if inside == 1 else 'frames'} inside rabit]")
            inside = 0
        lines.append(printable(f"    {file}:{line}, in {function}"))
    if inside:
        lines.append(f"    [{inside} {'frame' if inside == 1 else 'frames'} inside rabit]")
    return lines
