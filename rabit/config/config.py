"""Config: every setting of rabit, typed, in one place; the only reader of the environment.

The fields stand in a file for each theme; where their values come from is in sources.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from rabit.config import sources
from rabit.config.diagnostics import DiagnosisSettings
from rabit.config.failure import FailureSettings
from rabit.config.network import NetworkSettings
from rabit.config.placement import PlacementSettings
from rabit.config.setting import nearest
from rabit.config.tuning import MethodSettings, TuningSettings
from rabit.errors import InvalidArgument

__all__ = ["SECRET_VALUE", "Config", "adopt_environment", "process_environment", "rank_environment"]


def process_environment() -> Mapping[str, str]:
    """The environment of this process, as it is now.  Nothing else in the package reads it."""
    return dict(os.environ)


# The secret of a job as a value, for a process of another host: it leaves the environment with the first look.
SECRET_VALUE = "_RABIT_SECRET"
_secrets: dict[int, str] = {}  # by process: a forked child inherits none


def rank_environment() -> Mapping[str, str]:
    """As `process_environment`, for a process that becomes a rank: programs that it starts get no secret."""
    given = os.environ.pop(SECRET_VALUE, "")
    if given:
        _secrets[os.getpid()] = given
    taken = _secrets.get(os.getpid())
    return {**os.environ, **({SECRET_VALUE: taken} if taken else {})}


def adopt_environment(environ: Mapping[str, str]) -> None:
    """This process has these variables from now on."""
    os.environ.update(environ)


_CODE = "set in code"
_PART_SEPARATOR, _SETTING_SEPARATOR = "\x1f", "\x1e"
_LONGEST_PART = 500  # characters; a store takes at most 64 KiB from a rank
_NOT_KNOWN: Mapping[str, str] = {}


class Config(
    DiagnosisSettings,
    FailureSettings,
    MethodSettings,
    TuningSettings,
    NetworkSettings,
    PlacementSettings,
):
    """Every setting.  Durations are seconds, sizes are bytes.  Values are checked on creation."""

    extra = ("notices", "origins")
    notices: tuple[str, ...] = ()
    # Name of a setting -> where its value comes from, as far as this is known; see origin().
    origins: Mapping[str, str] = _NOT_KNOWN

    def _check(self) -> None:
        for setting in self.settings():
            setting.check(getattr(self, setting.name), f"Config.{setting.name}")
        for rank_name, size_name in (
            ("rank", "size"),
            ("local_rank", "local_size"),
            ("cross_rank", "cross_size"),
        ):
            rank, size = getattr(self, rank_name), getattr(self, size_name)
            if rank >= size:
                raise InvalidArgument(
                    f"{rank_name} {rank} is not below {size_name} {size}: ranks count from 0. "
                    f"Set RABIT_{rank_name.upper()} and RABIT_{size_name.upper()} together, or "
                    "start the job with rabitrun."
                )
        if self.secret and len(self.secret) != 32:
            raise InvalidArgument(
                f"the secret has {len(self.secret)} bytes: expected 32. Make one with "
                "secrets.token_bytes(32)."
            )

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] | None = None, **overrides: Any) -> Config:
        """The configuration that `environ` (default: the process environment) describes.

        overrides: fields that win over everything else; None leaves the field alone.
        Raises InvalidArgument for an unknown RABIT_ name or a malformed value.
        """
        environ = process_environment() if environ is None else environ
        by_name = {setting.name: setting for setting in cls.settings()}
        given = {name: value for name, value in overrides.items() if value is not None}
        for name in given:
            if name not in by_name:
                raise InvalidArgument(f"Config has no field {name!r}: {nearest(name, by_name)}")

        origin = "argument of Config.from_environ"
        found = sources.read(
            environ, by_name, {name: (value, origin) for name, value in given.items()}
        )
        return cls(**found.values, notices=tuple(found.notices), origins=found.origins)

    def replace(self, **changes: Any) -> Config:
        """A copy with `changes`."""
        return self.replace_from(_CODE, **changes)

    def replace_from(self, origin: str, **changes: Any) -> Config:
        """A copy with `changes`, which come from `origin`."""
        kept = {name: text for name, text in self.origins.items() if name not in changes}
        changed = {name: origin for name, value in changes.items() if value != getattr(self, name)}
        same = {name: self.origins[name] for name in changes
                if name not in changed and name in self.origins}  # fmt: skip
        origins = {**kept, **same, **changed}
        return Config(**{**vars(self), "origins": origins, **changes})

    def origin(self, name: str) -> str:
        """Where the value of a setting comes from: a variable, a key of a file, code, the default."""
        if name in self.origins:
            return self.origins[name]
        (default,) = [setting.default for setting in self.settings() if setting.name == name]
        return sources.DEFAULT if getattr(self, name) == default else _CODE

    def explain(self) -> str:
        """A text with the value of every setting, where it comes from and what it means."""
        lines = []
        for group in dict.fromkeys(setting.group for setting in self.settings()):
            lines.append(f"{group}:")
            for each in (found for found in self.settings() if found.group == group):
                value = each.format(getattr(self, each.name)) or '""'
                lines.append(f"  {each.name} = {value}  ({self.origin(each.name)})")
                lines.append(f"      {each.help}")
        return "\n".join(lines) + "\n"

    def equal_settings(self) -> str:
        """What must be equal on all ranks, as native/rendezvous/equal_settings.h reads it.

        In an elastic job the size is not part of it: a process reports its settings once, for all its
        engines, and the members of each are agreed elsewhere.
        """
        return _SETTING_SEPARATOR.join(
            _PART_SEPARATOR.join(
                _printable(part)
                for part in (
                    setting.name,
                    setting.format(getattr(self, setting.name)),
                    self.origin(setting.name),
                )
            )
            for setting in self.settings()
            if setting.is_equal and not (setting.name == "size" and self.min_np > 0)
        )

    def to_options(self, **extra: object) -> str:
        """The text for rabit_start: one line key=value for each native setting that is not empty.

        extra: native keys that are not settings, such as epoch.
        """
        lines = []
        for setting in self.settings():
            value = getattr(self, setting.name)
            is_empty = isinstance(value, (str, bytes)) and not value
            if setting.native and not is_empty:
                lines.append(f"{setting.native}={setting.native_value(value)}")
        lines.append(f"equal_settings={self.equal_settings()}")
        lines.extend(f"{key}={value}" for key, value in extra.items())
        return "\n".join(lines) + "\n"

    def to_environ(self) -> dict[str, str]:
        """The variables that describe what differs from the defaults; never the secret."""
        return {
            setting.variable: setting.format(getattr(self, setting.name))
            for setting in self.settings()
            if setting.variable and getattr(self, setting.name) != setting.default
        }


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text)[:_LONGEST_PART]
