"""The exception tree.

    RabitError (RuntimeError)
    |-- InvalidArgument (also ValueError)   the caller passed something that cannot work
    |   `-- NotInitialized                  a call that needs an engine, and there is none
    |-- Mismatch                            ranks disagree about one tensor; the others continue
    |-- Unsupported                         no implementation for this combination
    |-- PeerLost                            a rank died or became unreachable; see `.rank`
    |-- TimedOut (also TimeoutError)        a deadline passed
    |-- Aborted                             the engine stopped before the operation finished
    |-- IntegrityError                      numbers are wrong on one rank; all ranks report it
    |-- ResourceExhausted                   memory, descriptors, queue slots
    `-- Internal                            a defect of this library

Messages say what happened, why (with the values) and what to do, in one line that steers no terminal:
they hold names of tensors and texts of other exceptions.
"""

from __future__ import annotations

from rabit.printable import printable

__all__ = [
    "Aborted",
    "IntegrityError",
    "Internal",
    "InvalidArgument",
    "Mismatch",
    "NotInitialized",
    "PeerLost",
    "RabitError",
    "ResourceExhausted",
    "TimedOut",
    "Unsupported",
    "code_of",
    "error_from_code",
    "first_loss",
    "forget_losses",
    "has_failed",
]


class RabitError(RuntimeError):
    """Base of every error that rabit raises.  `rank` is the rank that caused it, or -1."""

    rank: int

    def __init__(self, message: str = "", rank: int = -1) -> None:
        super().__init__(printable(message))
        self.rank = rank

    def __reduce__(self) -> tuple[type[RabitError], tuple[str, int]]:
        return type(self), (str(self), self.rank)


class InvalidArgument(RabitError, ValueError):
    """The caller passed something that cannot work; nothing has been done."""


class NotInitialized(InvalidArgument):
    """The call needs a running engine: before `init()`, after `shutdown()`, or after a fork."""


class Mismatch(RabitError):
    """Ranks disagree about one tensor.  Other tensors are unaffected."""


class Unsupported(RabitError):
    """No implementation exists for this combination of arguments, build and machine."""


class PeerLost(RabitError):
    """A rank died, hung or became unreachable; `rank` names it.  The engine has stopped."""


class TimedOut(RabitError, TimeoutError):
    """A deadline passed.  After `Handle.wait(timeout)` the operation is still in flight."""


class Aborted(RabitError):
    """The engine stopped before the operation finished."""


class IntegrityError(RabitError):
    """A gradient is not finite, or parameters of ranks differ; `rank` names the one, or -1."""


class ResourceExhausted(RabitError):
    """Memory, descriptors or queue slots ran out."""


class Internal(RabitError):
    """A defect of rabit itself."""


# Index = rabit_code.
_CLASSES: tuple[type[RabitError] | None, ...] = (
    None,
    InvalidArgument,
    Mismatch,
    Unsupported,
    PeerLost,
    TimedOut,
    Aborted,
    ResourceExhausted,
    Internal,
)


def error_from_code(code: int, message: str, rank: int = -1) -> RabitError:
    """The exception for a failed native call: `code` is its rabit_code, never RABIT_OK."""
    found = _CLASSES[code] if 0 < code < len(_CLASSES) else None
    if found is None:
        return Internal(f"native code {code} is unknown to this package: {message}", rank)
    error = found(message, rank)
    if isinstance(error, PeerLost | Aborted) and rank >= 0 and not _losses:
        _losses.append(error)
    if isinstance(error, PeerLost | Aborted | TimedOut) and not _failed:
        _failed.append(True)
    return error


def code_of(kind: type[RabitError]) -> int:
    """The rabit_code of errors of this class."""
    return _CLASSES.index(kind)


def first_loss() -> RabitError | None:
    """The first error of this process that says another rank has gone, or None.

    It tells a failure that follows from another rank's from one of this rank's own, also where
    the error itself has been replaced on its way up.
    """
    return _losses[0] if _losses else None


def has_failed() -> bool:
    """True if the program has had an error that stops an engine: what its shutdown then finds is not reported again."""
    return bool(_failed)


def forget_losses() -> None:
    """A new engine starts: what its ranks did before does not count."""
    _losses.clear()
    _failed.clear()


_losses: list[RabitError] = []  # The first alone.
_failed: list[bool] = []  # Empty until then.
