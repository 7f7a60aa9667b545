"""The program of a summation server, which rabitrun -s starts: the native library, and nothing else."""

from __future__ import annotations

import signal
import sys

from rabit._native import check, load
from rabit.config.config import Config, process_environment
from rabit.errors import RabitError
from rabit.rendezvous.discovery import Discovery

__all__ = ["main"]


def main() -> int:
    """Serves the ranks that meet at RABIT_STORE_ADDRESS until the store is gone.  Blocks."""
    # The call below never comes back to Python: a signal must end the process by itself.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    for each in (signal.SIGUSR1, signal.SIGUSR2):  # Meant for the program of the ranks.
        signal.signal(each, signal.SIG_IGN)
    environ = process_environment()
    number = environ.get("RABIT_RANK", "")
    try:
        config = Discovery().place(Config.from_environ(environ), environ, None)
        library = load(config.library)
        check(library, library.rabit_serve(config.to_options().encode("utf-8")))
    except RabitError as error:
        print(f"server {number}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
