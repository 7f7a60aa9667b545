"""What a program of this package does around its work: its errors are words, and so is the loss of its reader."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable

from rabit.errors import InvalidArgument, RabitError

__all__ = ["run_command"]

_USAGE_STATUS = 2


def run_command(program: str, main: Callable[[], int]) -> int:
    """The exit status: what `main()` returns, or that of what it raises, which is printed in one line.

    A reader of standard output that has gone, as head does, is not an error: the status is that of SIGPIPE.
    """
    try:
        try:
            return main()
        finally:
            if sys.stdout is not None:  # As where the process was started with it closed.
                sys.stdout.flush()
    except RabitError as error:
        print(f"{program}: {error}", file=sys.stderr)
        return _USAGE_STATUS if isinstance(error, InvalidArgument) else 1
    except KeyboardInterrupt:
        print(f"{program}: interrupted.", file=sys.stderr)
        return 128 + signal.SIGINT
    except BrokenPipeError:
        _drop_output()
        return 128 + signal.SIGPIPE
    except OSError as error:
        if error.filename is not None:
            print(
                f"{program}: {error.filename}: {error.strerror}. Correct the path, or its permissions.",
                file=sys.stderr,
            )
        else:
            _drop_output()
            print(
                f"{program}: the output cannot be written: {error.strerror}. Make room.",
                file=sys.stderr,
            )
        return 1


def _drop_output() -> None:
    """What is in the buffer still is written nowhere, rather than as Python ends, with a traceback."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
