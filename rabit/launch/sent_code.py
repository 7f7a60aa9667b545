"""Functions that go to other processes, with the lines of their code that these cannot read."""

from __future__ import annotations

import io
import linecache
import pickle
from pathlib import Path
from types import CodeType
from typing import Any

__all__ = ["pickled", "unpickled"]


def pickled(value: Any) -> bytes:
    """`value` for `unpickled` in another process.  Raises what cloudpickle raises."""
    import cloudpickle

    sources: dict[str, list[str]] = {}

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        """Keeps the file of each function, for the tracebacks of ranks: cloudpickle puts a constant there."""

        def reducer_override(self, value: Any) -> Any:
            if not isinstance(value, CodeType):
                return super().reducer_override(value)
            file = value.co_filename
            if not Path(file).exists():  # such as the cells of a notebook
                sources[file] = linecache.getlines(file)
            make, fields = self.dispatch_table[CodeType](value)
            return make, tuple(
                file if isinstance(field, str) and field == "<dynamic-code>" else field for field in fields
            )

    written = io.BytesIO()
    Pickler(written).dump(value)
    return pickle.dumps((written.getvalue(), sources))


def unpickled(data: bytes) -> Any:
    """What `pickled` was given.  Trusts `data`, which runs as code."""
    value, sources = pickle.loads(data)
    for file, lines in sources.items():
        linecache.cache[file] = (len("".join(lines)), None, lines, file)  # no time: it is never looked for
    return pickle.loads(value)
