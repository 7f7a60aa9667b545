"""The settings of a job, from flags, the environment and the configuration file."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from rabit.config import sources
from rabit.config.config import Config
from rabit.config.setting import Setting
from rabit.launch.options import horovod
from rabit.launch.options.environment import base_environ
from rabit.launch.options.flags import setting_destination

__all__ = ["job_config", "tuning_environ"]

_FOR_THE_LAUNCHER = ("config_file", "secret_file")


def tuning_environ(
    arguments: argparse.Namespace, environ: Mapping[str, str]
) -> tuple[dict[str, str], list[str]]:
    """The RABIT_ variables that ranks get on top of `environ`, and notices for the user.

    A flag wins over a variable, a variable (RABIT_ or Horovod's) over the file.  Every value is
    checked here, so that a mistake is told once and not by every rank.
    """
    by_name = {each.name: each for each in Config.settings()}
    found, notices = _read(arguments, environ, by_name)
    for_ranks = {
        by_name[name].variable: by_name[name].format(value)
        for name, value in found.values.items()
        if found.kinds[name] in (sources.GIVEN, sources.FILE) and name not in _FOR_THE_LAUNCHER
    }
    return for_ranks, notices


def job_config(arguments: argparse.Namespace, environ: Mapping[str, str]) -> Config:
    """The settings of the job's ranks, as far as they do not depend on the rank."""
    found, _ = _read(arguments, environ, {each.name: each for each in Config.settings()})
    return Config(**found.values, origins=found.origins)


def _read(
    arguments: argparse.Namespace, environ: Mapping[str, str], by_name: Mapping[str, Setting]
) -> tuple[sources.Found, list[str]]:
    texts, notices = _from_flags(arguments, by_name)
    given = {
        name: (by_name[name].parse(text, source), source) for name, (text, source) in texts.items()
    }
    path = getattr(arguments, setting_destination(by_name["config_file"])) or environ.get(
        "RABIT_CONFIG_FILE"
    )
    if path:
        given["config_file"] = (path, "--config-file")
    found = sources.read(base_environ(environ), by_name, given)
    Config(**found.values)  # checks what settings say together
    return found, notices + found.notices


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
