"""A traceback as its reader needs it: the frames of this library are folded into one line."""

from __future__ import annotations

import os
import traceback
from typing import Any

from rabit.printable import printable, printable_lines

__all__ = ["folded_traceback", "is_installed", "is_ours", "message_of", "one_line", "users_frame"]

_PACKAGES = ("rabit", "rabit_torch", "rabit_mxnet")
_HOME = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
_OURS = tuple(f"{_HOME}/{each}/" for each in _PACKAGES)
_STANDARD = (f"{os.path.dirname(os.__file__)}/", "<frozen ")
_INSTALLED = ("/site-packages/", "/dist-packages/")


class _FoldedStack(traceback.StackSummary):
    """Formats as its base does, but for frames of this library that follow each other."""

    def format(self, **options: Any) -> list[str]:
        lines: list[str] = []
        run = 0
        for frame in (*self, None):
            if frame is not None and is_ours(frame.filename):
                run += 1
                continue
            if run:
                lines.append(f"  [{run} {'frame' if run == 1 else 'frames'} inside rabit]\n")
                run = 0
            if frame is not None:
                lines += traceback.StackSummary.from_list([frame]).format(**options)
        return lines


def folded_traceback(error: BaseException) -> str:
    """The traceback of `error` and of what led to it, with the frames of this library folded.

    Its texts steer no terminal; their lines stay.
    """
    told = traceback.TracebackException.from_exception(error)
    waiting: list[traceback.TracebackException | None] = [told]
    while waiting:
        each = waiting.pop()
        if each is None:
            continue
        if not all(is_ours(frame.filename) for frame in each.stack):  # A defect of ours is shown whole.
            each.stack = _FoldedStack(each.stack)
        waiting += [each.__cause__, each.__context__]
    return printable_lines("".join(told.format()))


def message_of(error: BaseException) -> str:
    """str(error), or what Python shows where that raises: reporting an error must not raise another."""
    try:
        return str(error)
    except Exception:
        return "<exception str() failed>"


def one_line(error: BaseException) -> str:
    """Type and the first line of the message of `error`, for readers who have one line."""
    message = printable(message_of(error).strip().partition("\n")[0])
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def users_frame(error: BaseException) -> traceback.FrameSummary | None:
    """Where the user's own code was when `error` arose: the innermost frame that is of no package.

    Without such a frame, the innermost one outside this library; None if there is none at all.
    """
    frames = [each for each in traceback.extract_tb(error.__traceback__) if not is_ours(each.filename)]
    own = [frame for frame in frames if not is_installed(frame.filename)]
    found = own or frames
    return found[-1] if found else None


def is_installed(file: str) -> bool:
    """True of a file of Python itself or of an installed package."""
    return file.startswith(_STANDARD) or any(each in file for each in _INSTALLED)


def is_ours(file: str) -> bool:
    """True of a file of this library."""
    # runpy starts `python -m`, as which rabit.run's ranks run.
    return file.startswith(_OURS) or file == "<frozen runpy>"
