"""The program of a rank of rabit.run: makes the call and sends its result."""

from __future__ import annotations

import os
import sys
from typing import Any

from rabit.errors import InvalidArgument
from rabit.launch.sent_code import unpickled

__all__ = ["main"]


def main() -> int:
    payload, result = int(sys.argv[1]), int(sys.argv[2])
    # Several ranks share the payload's file: reading at a position leaves the others alone.
    data = b""
    while piece := os.pread(payload, 1 << 20, len(data)):
        data += piece
    os.close(payload)
    os.set_inheritable(result, False)
    func, args, kwargs = unpickled(data)
    value = func(*args, **kwargs)
    with os.fdopen(result, "wb") as file:
        file.write(_pickled(value))
    return 0


def _pickled(value: Any) -> bytes:
    """With the classes of the caller's __main__, which is another module here."""
    import cloudpickle  # whose pickles those of `run` are

    try:
        return bytes(cloudpickle.dumps(value))
    except Exception as error:  # Whatever the object's own methods raise.
        raise InvalidArgument(
            f"run() cannot return the value of the function on rank {os.environ['RABIT_RANK']}, of type "
            f"{type(value).__name__}, to the caller: {error}. Return what it is made of."
        ) from error


if __name__ == "__main__":
    sys.exit(main())
