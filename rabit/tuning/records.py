"""What the autotuner writes down: a log of every window, and the result of a job for the next one."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import hashlib
import json
import math
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from rabit.errors import InvalidArgument
from rabit.tuning.knobs import KNOBS, Values, is_sound

__all__ = ["Cache", "Key", "Log", "Window", "cache_folder"]

_FORMAT = 2


@dataclass(frozen=True)
class Key:
    """What a result holds for: model, topology, backend, where tuning starts, and what it may change.

    work: what a step reduces: kinds, types and sizes of its tensors, whatever their names.
    topology: ranks, hosts, and the settings that say how they are connected.
    """

    work: str
    topology: str
    backend: str
    start: str
    knobs: str

    @property
    def digest(self) -> str:
        """Sixteen hexadecimal digits."""
        text = json.dumps([_FORMAT, *dataclasses.astuple(self)])
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Window:
    """One measurement.

    phase: warmup, explore or guard, with "-off" for what the job does without tuning; at the end
    chosen or off.
    values: in force, chosen by the tuner or not.
    step_s: seconds of one step, in whole nanoseconds, so that a log gives back what was measured.
    """

    phase: str
    key: str
    values: Values
    steps: int
    step_s: float
    step_bytes: int


class Log:
    """A CSV file with one row for each window; rows of earlier jobs are read and kept."""

    COLUMNS = ("time_s", "phase", "key", *KNOBS, "steps", "step_ms", "bytes_per_step", "mb_per_s")

    def __init__(self, path: Path) -> None:
        """Raises InvalidArgument for a file that cannot be written or is something else."""
        self.path = path
        self.earlier: list[Window] = []
        try:
            with path.open("a+", newline="", encoding="utf-8") as file:
                file.seek(0)
                self._read(file)
                if file.tell() == 0:
                    csv.writer(file).writerow(self.COLUMNS)
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise InvalidArgument(
                f"rank 0: the log of the autotuner, {path}, cannot be used: {error}. Correct "
                "RABIT_AUTOTUNE_LOG, or unset it."
            ) from error

    def _read(self, file: TextIO) -> None:
        rows = csv.DictReader(file)
        if rows.fieldnames is not None and tuple(rows.fieldnames) != self.COLUMNS:
            raise InvalidArgument(
                f"rank 0: {self.path} is not a log of the autotuner: its first line is not "
                f"{','.join(self.COLUMNS)}. Name another file in RABIT_AUTOTUNE_LOG."
            )
        for number, row in enumerate(rows, 2):
            try:
                values = {
                    name: row[name] if name == "overlap" else int(row[name]) for name in KNOBS
                }
                for name, value in values.items():
                    if not is_sound(name, value):
                        raise ValueError(f"its {name} is {value!r}")
                seconds = round(float(row["step_ms"]) / 1e3, 9)
                if not 0 <= seconds < math.inf:
                    raise ValueError(f"its step_ms is {row['step_ms']}")
                steps, step_bytes = int(row["steps"]), int(row["bytes_per_step"])
                window = Window(row["phase"], row["key"], values, steps, seconds, step_bytes)
                self.earlier.append(window)
            except (TypeError, ValueError) as error:
                raise InvalidArgument(
                    f"rank 0: line {number} of {self.path} is not a row of the autotuner's log: {error}. "
                    "Remove the line, or name another file in RABIT_AUTOTUNE_LOG."
                ) from error

    def write(self, time_s: float, window: Window) -> None:
        """Adds a row; a disk that is full later on costs the row and nothing else."""
        rate = window.step_bytes / window.step_s / 1e6 if window.step_s > 0 else 0.0
        row = (
            f"{time_s:.3f}", window.phase, window.key, *(window.values[name] for name in KNOBS),
            window.steps, f"{window.step_s * 1e3:.6f}", window.step_bytes, f"{rate:.3f}",
        )  # fmt: skip
        with contextlib.suppress(OSError), self.path.open("a", newline="") as file:
            csv.writer(file).writerow(row)


def cache_folder(setting: str, environ: Mapping[str, str]) -> Path | None:
    """Where results are remembered: RABIT_AUTOTUNE_CACHE, else the user's cache; None: nowhere."""
    if setting.lower() == "off":
        return None
    if setting:
        return Path(setting)
    if environ.get("XDG_CACHE_HOME"):
        return Path(environ["XDG_CACHE_HOME"]) / "rabit" / "autotune"
    return Path(environ["HOME"], ".cache", "rabit", "autotune") if environ.get("HOME") else None


class Cache:
    """A folder with one small file for each key; jobs may share it.

    warn: is called with the text for a file that cannot be used, and of a folder that cannot be written.
    """

    def __init__(self, folder: Path | None, warn: Callable[[str], None]) -> None:
        self.folder = folder
        self._warn = warn

    def path(self, key: Key) -> Path | None:
        return None if self.folder is None else self.folder / f"{key.digest}.json"

    def load(self, key: Key) -> Values | None:
        """The remembered values, each possible by itself; {}: tuning gained nothing; None: no memory.

        A file that is damaged or of another version is as good as none, after a warning.
        """
        path = self.path(key)
        if path is None:
            return None
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            return _checked(document, key)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            self._warn(f"{path} is not used, because {error}; this job will replace it")
            return None

    def save(self, key: Key, values: Values, **more: Any) -> Path | None:
        """Replaces what is remembered, whole or not at all; None if that is not possible.

        values: {} if tuning gained nothing.
        """
        path = self.path(key)
        if path is None:
            return None
        document = {"format": _FORMAT, "key": dataclasses.asdict(key), "values": values, **more}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # A name of its own, for another host may write to the same folder.
            with tempfile.NamedTemporaryFile(
                "w", encoding="utf-8", dir=path.parent, prefix=f".{path.stem}.", delete=False
            ) as file:
                new = Path(file.name)
                file.write(json.dumps(document, indent=2) + "\n")
            new.replace(path)
        except OSError as error:
            self._warn(f"the result cannot be remembered in {path}: {error}")
            return None
        return path


def _checked(document: Any, key: Key) -> Values:
    """The values in a file's document.  Raises ValueError that says what is wrong."""
    if not isinstance(document, dict) or document.get("format") != _FORMAT:
        raise ValueError(f"it is not a result of format {_FORMAT}")
    if document.get("key") != dataclasses.asdict(key):
        raise ValueError("it is the result of another job")
    values = document.get("values")
    if values == {}:
        return {}
    if not isinstance(values, dict) or set(values) != set(KNOBS):
        raise ValueError(f"its values are not {', '.join(KNOBS)}")
    for name, value in values.items():
        if not is_sound(name, value):
            raise ValueError(f"its {name} is {value!r}, with which no engine can work")
    return values
