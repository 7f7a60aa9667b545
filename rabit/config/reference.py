"""The reference page of the configuration, generated from the fields of Config."""

from __future__ import annotations

from rabit.config import byteps, horovod, older
from rabit.config.config import Config
from rabit.config.setting import Setting

__all__ = ["reference_markdown"]

_GROUPS = (
    ("tuning", "Tuning"),
    ("network", "Network"),
    ("failure", "When something is wrong"),
    ("diagnosis", "Diagnosis"),
    ("placement", "Secret"),
)

_HEAD = """# Configuration

Every setting is a field of `rabit.Config`, an environment variable and a flag of `rabitrun`.
Most jobs need none of them. The [basic](#basic) ones are for everyone; the [expert](#expert) ones are for
measured problems, and their defaults adapt to the job.

A value comes from, in this order: an explicit argument, the `RABIT_` variable, the variable of Horovod or
BytePS that means the same, the configuration file, the default. An unknown `RABIT_` variable is an error that
names the nearest known one. A malformed value is an error that names the variable, the value and what is expected.

Sizes take the suffixes K, M, G and T (powers of 1024); durations take us, ms, s, m, h and are seconds
when bare. This page is generated from the fields of `rabit/config/`.
"""
_LEVELS = (("basic", "Basic"), ("expert", "Expert"))
_HIDDEN = """
## Set by launchers

Launchers set these variables for each process; so do tests and work on rabit itself. Do not set them in a job.

"""


def reference_markdown() -> str:
    """The page as Markdown."""
    settings = Config.settings()
    parts = [_HEAD]
    for level, level_title in _LEVELS:
        parts.append(f"\n## {level_title}\n")
        for group, title in _GROUPS:
            entries = [
                _entry(shown) for shown in settings if (shown.level, shown.group) == (level, group)
            ]
            parts += [f"\n### {title}\n", *entries] if entries else []
    parts.append(_HIDDEN)
    hidden = (setting for setting in settings if setting.level == "hidden")
    parts.extend(f"- `{setting.variable or 'Config.' + setting.name}`: {setting.help}\n" for setting in hidden)
    parts.append("\n## Older names\n\nThey are accepted, and a notice says so.\n\n")
    parts.extend(
        f"- `{twin.variable}`: `RABIT_{twin.setting.upper()}`"
        + (f"=`{twin.implied}`" if twin.implied else "")
        + ".\n"
        for twin in older.TWINS
    )
    parts.append(
        "\n## Variables of Horovod without effect\n\nThey are accepted, and a notice says so.\n\n"
    )
    parts.extend(f"- `{name}`: {why}.\n" for name, why in horovod.VARIABLES_WITHOUT_EFFECT.items())
    parts.append("\n## Variables of BytePS without effect\n\nThe same.\n\n")
    parts.extend(f"- `{name}`: {why}.\n" for name, why in byteps.VARIABLES_WITHOUT_EFFECT.items())
    return "".join(parts)


def _entry(each: Setting) -> str:
    title = each.variable or f"Config.{each.name}"
    lines = [f"\n#### `{title}`\n\n{each.help}\n\n"]
    default = each.format(each.default)
    lines.append(
        f"- value: {each.expected}\n- default: `{default}`\n"
        if default
        else f"- value: {each.expected}\n- default: empty\n"
    )
    if each.flag:
        lines.append(f"- flag of rabitrun: `{each.flag}`\n")
    for whose, twins in (("Horovod", horovod.TWINS), ("BytePS", byteps.TWINS)):
        variable = horovod.variable_of(each.name, twins)
        if variable:
            lines.append(f"- {whose}: `{variable}`\n")
    if each.is_equal:
        lines.append("- must be equal on all ranks\n")
    return "".join(lines)


if __name__ == "__main__":  # python -m rabit.config.reference > docs/reference/config.md
    print(reference_markdown(), end="")
