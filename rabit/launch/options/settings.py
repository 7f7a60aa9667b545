"""The settings of a job, read once from flags, the environment and the configuration file."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass

from rabit.config import sources
from rabit.config.config import Config
from rabit.config.setting import Setting
from rabit.launch.options import horovod
from rabit.launch.options.environment import base_environ
from rabit.launch.options.flags import setting_destination

__all__ = ["JobSettings", "read_settings"]

_FOR_THE_LAUNCHER = ("config_file", "secret_file")


@dataclass(frozen=True)
class JobSettings:
    """config: of the ranks, as far as it does not depend on the rank.

    tuning: the RABIT_ variables that ranks get on top of the environment.  given: names of the settings that
    somebody has set.  notices: for the user.
    """

    config: Config
    tuning: dict[str, str]
    given: frozenset[str]
    notices: tuple[str, ...]


def read_settings(parsed: argparse.Namespace, environ: Mapping[str, str]) -> JobSettings:
    """What flags, `environ` and the file say.  Raises InvalidArgument for a value that is not valid.

    A flag wins over a variable, a variable (RABIT_ or Horovod's) over the file.
    """
    by_name = {setting.name: setting for setting in Config.settings()}
    texts, notices = _from_flags(parsed, by_name)
    given = {
        name: (by_name[name].parse(text, source), source) for name, (text, source) in texts.items()
    }
    in_flag = getattr(parsed, setting_destination(by_name["config_file"]))
    if path := in_flag or environ.get("RABIT_CONFIG_FILE"):
        given["config_file"] = (path, "--config-file")
    found = sources.read(base_environ(environ), by_name, given)
    tuning = {
        by_name[name].variable: by_name[name].format(value)
        for name, value in found.values.items()
        if found.kinds[name] in (sources.GIVEN, sources.FILE) and name not in _FOR_THE_LAUNCHER
    }
    config = Config(**found.values, origins=found.origins)
    return JobSettings(config, tuning, frozenset(found.values), (*notices, *found.notices))


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
