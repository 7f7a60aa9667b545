"""The secret of a job: made here, handed on through descriptors, never through text others see.

As a program, `python -m rabit.launch.secret FILE` makes a secret file for RABIT_SECRET_FILE.
"""

from __future__ import annotations

import os
import secrets
import sys
from pathlib import Path

__all__ = ["make_secret", "memory_file", "write_secret_file"]


def make_secret() -> bytes:
    """32 bytes that nobody can guess."""
    return secrets.token_bytes(32)


def memory_file(content: bytes, name: str) -> int:
    """A descriptor without a name in the file system, holding `content`; children can read it."""
    descriptor = os.memfd_create(f"rabit-{name}")
    with os.fdopen(os.dup(descriptor), "wb") as file:
        file.write(content)
    return descriptor


def write_secret_file(path: Path, secret: bytes | None = None) -> None:
    """Makes `path`, mode 0600, with this secret or a fresh one.  Raises FileExistsError if it exists."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write((secret or make_secret()).hex() + "\n")


def main() -> int:
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        print("usage: python -m rabit.launch.secret FILE", file=sys.stderr)
        return 2
    try:
        write_secret_file(Path(sys.argv[1]))
    except OSError as error:
        print(
            f"the secret file {sys.argv[1]} cannot be made: {error.strerror}. Choose another name.",
            file=sys.stderr,
        )
        return 1
    print(f"wrote {sys.argv[1]} (mode 0600). Set RABIT_SECRET_FILE to its path on every host.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
