"""rabitrun, which is also `python -m rabit.launch`."""

from __future__ import annotations

import signal
import sys
from types import FrameType

__all__ = ["main"]


def main() -> int:
    """rabitrun as a process of its own: signals end it in words, and with what it has started."""
    # Python starts with the dispositions of whoever has started it.
    if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # Else nobody learns how a child has ended.
    for signum in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(signum) == signal.SIG_DFL:
            signal.signal(signum, _end)
    # Nor does anyone block them on purpose in a program that is yet to start.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signal.valid_signals())
    try:
        from rabit.launch.cli import main as run  # Here, since that takes a while as well.

        return run()
    except KeyboardInterrupt:
        print("rabitrun: interrupted.", file=sys.stderr)
        return 128 + signal.SIGINT


def _end(signum: int, frame: FrameType | None) -> None:
    """Of rabitrun without ranks, which would end all the same, but leave behind what it has started."""
    print(
        f"rabitrun: {signal.Signals(signum).name}: ended while no rank was running.",
        file=sys.stderr,
    )
    raise SystemExit(128 + signum)


if __name__ == "__main__":
    sys.exit(main())
