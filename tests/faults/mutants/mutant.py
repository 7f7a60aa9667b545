"""Mutant: one bug that the tests named with it must catch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["Mutant"]


@dataclass(frozen=True)
class Mutant:
    """The sources with `old` replaced by `new` in `file`.

    name: what is wrong then, in a few words.  file: from the root of the repository.  old: stands there
    exactly once.  tests: arguments of pytest for each; or "native:FILTER", a filter of rabit_tests.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    @property
    def is_native(self) -> bool:
        """True if it is in the library, which has to be built then."""
        return self.file.startswith("native/")

    def changed(self, root: Path) -> str:
        """What the file holds with this bug.  Raises ValueError unless `old` stands there once."""
        text = (root / self.file).read_text()
        count = text.count(self.old)
        if count != 1 or self.old == self.new:
            raise ValueError(
                f"mutant '{self.name}' does not apply: {self.file} has its text {count} times, not once. Give "
                f"it the text that stands there now: {self.old!r}"
            )
        return text.replace(self.old, self.new)
