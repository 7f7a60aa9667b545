"""The program of a rank of rabit.run: makes the call and sends its result."""

from __future__ import annotations

import os
import pickle
import sys

__all__ = ["main"]


def main() -> int:
    payload, result = int(sys.argv[1]), int(sys.argv[2])
    # Several ranks share the payload's file: reading at a position leaves the others alone.
    data = b""
    while piece := os.pread(payload, 1 << 20, len(data)):
        data += piece
    os.close(payload)
    os.set_inheritable(result, False)
    func, args, kwargs = pickle.loads(data)
    value = func(*args, **kwargs)
    with os.fdopen(result, "wb") as file:
        file.write(pickle.dumps(value))
    return 0


if __name__ == "__main__":
    sys.exit(main())
