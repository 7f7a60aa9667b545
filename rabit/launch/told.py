"""What ranks told of their ends, before the ends: see rabit.diagnostics.ending."""

from __future__ import annotations

import json
from dataclasses import dataclass

from rabit.printable import printable, printable_lines

__all__ = ["Told", "Tellings"]

_LONGEST_LINE_BYTES = 1 << 20


@dataclass(frozen=True)
class Told:
    """Why one rank ends, in its own words.

    at_s: when the launcher heard it, in seconds since the start of the job.
    raised: the type of the exception that ended the rank, or "": it has just come to its end.
    lost: the rank whose end made this one end, or -1 if the reason is its own.
    place, code: the user's line.
    No text steers a terminal.  Those of exceptions and programs may have several lines.
    """

    at_s: float
    raised: str = ""
    message: str = ""
    place: str = ""
    code: str = ""
    lost: int = -1


class Tellings:
    """Puts together what comes through the pipes of the ranks; the last word of each counts."""

    def __init__(self) -> None:
        self._partial: dict[int, bytes] = {}
        self._told: dict[int, Told] = {}
        # Those that have called rabit.init() or another call in which ranks meet; true: it waits for all ranks.
        self.joined: dict[int, bool] = {}
        self.have_met = False  # some such call has returned
        self.given_up: dict[int, str] = {}  # by the other ranks, and why; "": they leave as they were told
        self.admitted: dict[int, int] = {}  # into jobs that ran: with them so many ranks

    def hear(self, rank: int, data: bytes, at_s: float) -> None:
        """`data`, not necessarily whole lines, came from `rank`."""
        *lines, rest = (self._partial.get(rank, b"") + data).split(b"\n")
        self._partial[rank] = rest[-_LONGEST_LINE_BYTES:]
        for line in lines:
            self._hear_line(rank, line, at_s)

    def of(self, rank: int) -> Told | None:
        """What `rank` told last, or None: it runs another program, or had no time to tell."""
        return self._told.get(rank)

    def _hear_line(self, rank: int, line: bytes, at_s: float) -> None:
        try:
            document = json.loads(line)
            event = document["event"]
            if event == "joined":  # A program that starts takes back what one before it told.
                self._told.pop(rank, None)
                self.joined[rank] = bool(document.get("awaits all", True))
            elif event == "met":
                self.have_met = True
            elif event == "admitted":
                self.admitted[rank] = int(document["size"])
            elif event == "given up":
                self.given_up[int(document["member"])] = printable(str(document["why"]))
            elif event == "leaving":
                self._told[rank] = Told(at_s, lost=int(document["lost"]))
            elif event == "raised":
                self._told[rank] = Told(
                    at_s,
                    raised=printable(str(document["type"])),
                    message=printable_lines(str(document["message"])),
                    place=printable(str(document["place"])),
                    code=printable_lines(str(document["code"])),
                    lost=int(document["lost"]),
                )
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return  # Another program wrote into the pipe; what the rank itself has said holds on.
