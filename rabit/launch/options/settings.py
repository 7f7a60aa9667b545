"""The settings of a job, from flags, the environment and the configuration file."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from rabit.config.config import Config
from rabit.config.setting import Setting
from rabit.launch.options import horovod
from rabit.launch.options.config_file import read_settings
from rabit.launch.options.environment import base_environ
from rabit.launch.options.flags import setting_destination

__all__ = ["tuning_environ"]

_LEVELS = {"trace": "debug", "fatal": "error"}  # Horovod's levels that rabit has not.
_FOR_THE_LAUNCHER = ("config_file", "secret_file")


def tuning_environ(
    arguments: argparse.Namespace, environ: Mapping[str, str]
) -> tuple[dict[str, str], list[str]]:
    """The RABIT_ variables that ranks get on top of `environ`, and notices for the user.

    A flag wins over a variable, a variable (RABIT_ or Horovod's) over the file.  Every value is
    checked here, so that a mistake is told once and not by every rank.
    """
    by_name = {each.name: each for each in Config.settings()}
    values, notices = _from_flags(arguments, by_name)
    path = (
        getattr(arguments, setting_destination(by_name["config_file"]))
        or environ.get("RABIT_CONFIG_FILE")
        or ""
    )
    if path:
        in_file, more = read_settings(Path(path), by_name)
        notices += more
        for name, found in in_file.items():
            each = by_name[name]
            is_set = each.variable in environ or (each.horovod and environ.get(each.horovod))
            if name not in values and not is_set:
                values[name] = found
    checked = {}
    for name, (text, source) in values.items():
        each = by_name[name]
        text = _LEVELS.get(text.lower(), text) if name == "log_level" else text
        checked[each.variable] = each.format(each.parse(text, source))
    final = Config.from_environ({**base_environ(environ), **checked})
    return checked, notices + list(final.notices)


def _from_flags(
    arguments: argparse.Namespace, by_name: Mapping[str, Setting]
) -> tuple[dict[str, tuple[str, str]], list[str]]:
    values, notices = horovod.settings_from(arguments)
    for each in by_name.values():
        if not each.flag or each.name in _FOR_THE_LAUNCHER:
            continue
        given = getattr(arguments, setting_destination(each))
        if given is not None:
            text = ("1" if given else "0") if each.kind == "bool" else given
            values[each.name] = (text, each.flag)
    return values, notices
